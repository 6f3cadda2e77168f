"""The learning problem of a run: its data, network and loss, evaluated one model at a time."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cdfl.algorithms import ClientView
from cdfl.core import Layout, Loss, Settings, pretrain
from cdfl.core.batches import batch_plan
from cdfl.core.proxy import ProxySets, outputs
from cdfl.data import Draw, Federation, Samples, to_input
from cdfl.data.randomness import generator
from cdfl.models import build
from cdfl.policy import Observation
from cdfl.scenarios import Scenario
from cdfl.sim.flops import Flops, count_flops
from cdfl.sim.time_models import Tick, TimeModel, checked_ticks

# A run ends after this many turns for each planned upload, even if its policy rarely uploads.
TURNS_PER_UPLOAD = 50
# A problem caches the data of this many turns: runs of one seed share it and need the same data at about the same time.
DRAWS_KEPT = 256


class TurnData(NamedTuple):
    """A client's data at a turn, and the random choices of its training."""

    draw: Draw
    plan: Tensor  # (steps, batch) its batches
    noise_seed: int


class Problem:
    """What `reference_simulation` and `simulation` share. Its methods compute one model at a time."""

    def __init__(
        self,
        scenario: Scenario,
        federation: Federation,
        settings: Settings,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.scenario = scenario
        self.federation = federation
        self.settings = settings
        self.device = federation.device
        self.dtype = dtype
        self.seed = federation.seed
        self.loss: Loss = cross_entropy  # the mean over a batch, as in the paper
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._torch_seed("weights"))
            self.model: nn.Module = build(scenario.model, federation.input_shape, federation.num_classes)
        self.model.to(self.device, dtype)
        self.layout = Layout.of(self.model)
        self.start: Tensor | None = None  # (K, P) the clusters after pre-training
        self.proxy_sets = [self.ready(*federation.proxy(k)) for k in range(federation.num_clusters)]
        self.test_sets = [self.ready(*federation.test(k)) for k in range(federation.num_clusters)]
        self.turn_data = lru_cache(maxsize=DRAWS_KEPT)(self._turn_data)

    def with_federation(self, federation: Federation) -> "Problem":
        """Return the same learning problem with other client data."""
        other = copy.copy(self)
        other.federation = federation
        other.turn_data = lru_cache(maxsize=DRAWS_KEPT)(other._turn_data)
        return other

    def _turn_data(self, client: int, turn: int) -> TurnData:
        """Return a client's data at a turn: a pure function of (seed, client, turn), so it can be cached."""
        draw = self.federation.draw(client, turn)
        return TurnData(draw, self.plan(draw, client, turn), self.noise_seed(client, turn))

    @property
    def model_bytes(self) -> int:
        """The size of one model on the wire."""
        return self.layout.size * self.dtype.itemsize

    def pretrain(self) -> Tensor:
        """Return the cluster models (K, P) at epoch 0."""
        sets = [self.ready(*self.federation.pretraining(k)) for k in range(self.federation.num_clusters)]
        with torch.random.fork_rng(devices=self._gpus):
            # Called before each training: like a client, each starts from the same random state (dropout).
            begin = lambda message: torch.manual_seed(self.pretraining_noise_seed)  # noqa: E731
            return pretrain(self.model, sets, self.loss, self.settings, self.pretraining_shuffle(), begin)

    @property
    def pretraining_noise_seed(self) -> int:
        """The seed of the random numbers of each pre-training."""
        return self._torch_seed("pretraining noise")

    def pretraining_shuffle(self) -> torch.Generator:
        """Return the generator of the batches of the pre-training."""
        return torch.Generator().manual_seed(self._torch_seed("pretraining"))

    def plan(self, draw: Draw, client: int, turn: int) -> Tensor:
        """Return the samples of each batch, (steps, batch): a pure function of (seed, client, turn)."""
        shuffle = torch.Generator().manual_seed(self._torch_seed("batches", client, turn))
        return batch_plan(
            len(draw.train), self.settings.training.batch_size, self.settings.training.local_epochs, shuffle
        )

    def ticks(self, time_model: TimeModel) -> Iterator[Tick]:
        """Return the ticks of a run, `most_ticks` at most: a pure function of the seed."""
        ticks = checked_ticks(time_model, self.scenario.num_clients, generator(self.seed, "turns"))
        return islice(ticks, self.most_ticks)

    @property
    def most_ticks(self) -> int:
        """The number of ticks after which a run ends."""
        return 2 * self.scenario.num_clients + TURNS_PER_UPLOAD * self.scenario.num_uploads

    def noise_seed(self, client: int, turn: int) -> int:
        """Return the seed of the random numbers (dropout) of one training."""
        return self._torch_seed("noise", client, turn)

    @contextmanager
    def noise(self, client: int, turn: int) -> Iterator[None]:
        """Seed the random numbers of one training, and restore the state afterwards."""
        with torch.random.fork_rng(devices=self._gpus):
            torch.manual_seed(self.noise_seed(client, turn))
            yield

    def view(self, draw: Draw) -> ClientView:
        """Return new data as the client sees them."""
        return ClientView(
            losses=lambda models: self.sample_losses(models, draw.train),
            true_mixture=torch.from_numpy(draw.true_mixture),
        )

    def observe(self, personal_model: Tensor, draw: Draw, client: int, turn: int) -> Observation:
        """Return new data as a policy sees them."""
        chance = float(generator(self.seed, "chance", client, turn).random())
        return Observation(len(draw.train), lambda: self.mean_loss(personal_model, draw.train), chance)

    def mean_loss(self, vector: Tensor, samples: Samples) -> float:
        """Return the loss of a model (P,) on samples."""
        inputs, targets = self.inputs(samples)
        return float(self.loss(self.outputs(vector, inputs), targets))

    def inputs(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Return images scaled for the network (n, C, H, W), and labels (n,)."""
        return self.ready(*self.federation.fetch(samples))

    def outputs(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs of a model (P,) in evaluation mode."""
        found: Tensor = outputs(self.model, self.layout, vector, inputs)
        return found

    def evaluate(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the proxy set of its cluster (n,)."""
        return ProxySets(self.model, self.loss, self.proxy_sets)(models, clusters)

    def sample_losses(self, models: Tensor, samples: Samples) -> Tensor:
        """Return the loss of every model (K, P) on every sample, (n, K)."""
        inputs, targets = self.inputs(samples)
        return torch.stack(
            [cross_entropy(self.outputs(vector, inputs), targets, reduction="none") for vector in models], dim=1
        )

    def accuracy(self, vector: Tensor, samples: Samples) -> float:
        """Return the accuracy of a model (P,) on samples."""
        return self._score(vector, *self.inputs(samples))

    def cluster_accuracies(self, models: Tensor) -> list[float]:
        """Return the accuracy of each cluster's model on its test set; one model may serve all clusters."""
        return [
            self._score(models[min(k, len(models) - 1)], inputs, targets)
            for k, (inputs, targets) in enumerate(self.test_sets)
        ]

    @cached_property
    def flops(self) -> Flops:
        """The floating-point operations of one sample."""
        return count_flops(self.model, self.federation.input_shape)

    def _score(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> float:
        return float((self.outputs(vector, inputs).argmax(dim=1) == targets).double().mean())

    def ready(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Scale fetched images for the network."""
        return to_input(images, self.dtype), labels

    @property
    def _gpus(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []

    def _torch_seed(self, purpose: str, *key: int) -> int:
        return int(generator(self.seed, purpose, *key).integers(2**63))
