"""The learning problem of a run: data, network and loss, and what can be asked of them."""

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

# A run of a policy that hardly ever says upload ends after so many turns for every upload that was planned.
TURNS_PER_UPLOAD = 50
# Runs of one seed that go side by side find the same data within a stack of each other.
DRAWS_KEPT = 256


class Drawn(NamedTuple):
    """What a client finds at a turn, and what is decided by chance about its training."""

    draw: Draw
    plan: Tensor  # (steps, batch) its batches
    noise_seed: int


class Task:
    """What plain and stacked simulation share; every answer here is computed one model at a time."""

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
        self.start: Tensor | None = None  # (K, P) the pre-trained clusters, once somebody has trained them
        self.proxy_sets = [self.ready(*federation.proxy(k)) for k in range(federation.num_clusters)]
        self.test_sets = [self.ready(*federation.test(k)) for k in range(federation.num_clusters)]
        self.drawn = lru_cache(maxsize=DRAWS_KEPT)(self._drawn)

    def with_federation(self, federation: Federation) -> "Task":
        """The same learning problem, its clients drawing otherwise."""
        other = copy.copy(self)
        other.federation = federation
        other.drawn = lru_cache(maxsize=DRAWS_KEPT)(other._drawn)
        return other

    def _drawn(self, client: int, turn: int) -> Drawn:
        """What a client finds at a turn: a pure function of (seed, client, turn), so `drawn` may remember it."""
        draw = self.federation.draw(client, turn)
        return Drawn(draw, self.plan(draw, client, turn), self.noise_seed(client, turn))

    @property
    def model_bytes(self) -> int:
        """Bytes of one model on its way."""
        return self.layout.size * self.dtype.itemsize

    def pretrain(self) -> Tensor:
        """The cluster models (K, P) at epoch 0."""
        sets = [self.ready(*self.federation.pretraining(k)) for k in range(self.federation.num_clusters)]
        with torch.random.fork_rng(devices=self._gpus):
            # Told before each of its trainings: each gets random numbers (dropout) of its own, as a client's does.
            begin = lambda message: torch.manual_seed(self.pretraining_noise_seed)  # noqa: E731
            return pretrain(self.model, sets, self.loss, self.settings, self.pretraining_shuffle(), begin)

    @property
    def pretraining_noise_seed(self) -> int:
        """Where the random numbers of each pre-training start."""
        return self._torch_seed("pretraining noise")

    def pretraining_shuffle(self) -> torch.Generator:
        """Decides the batches of the pre-training."""
        return torch.Generator().manual_seed(self._torch_seed("pretraining"))

    def plan(self, draw: Draw, client: int, turn: int) -> Tensor:
        """Which samples of a draw form which batch, (steps, batch): a pure function of (seed, client, turn)."""
        shuffle = torch.Generator().manual_seed(self._torch_seed("batches", client, turn))
        return batch_plan(
            len(draw.train), self.settings.training.batch_size, self.settings.training.local_epochs, shuffle
        )

    def ticks(self, time_model: TimeModel) -> Iterator[Tick]:
        """Who does what when: a pure function of the seed. It ends, even where policies hardly ever say upload."""
        ticks = checked_ticks(time_model, self.scenario.num_clients, generator(self.seed, "turns"))
        return islice(ticks, self.most_ticks)

    @property
    def most_ticks(self) -> int:
        """After so many ticks a run ends."""
        return 2 * self.scenario.num_clients + TURNS_PER_UPLOAD * self.scenario.num_uploads

    def noise_seed(self, client: int, turn: int) -> int:
        """Where the random numbers of one training (dropout) start, whatever was trained before it."""
        return self._torch_seed("noise", client, turn)

    @contextmanager
    def noise(self, client: int, turn: int) -> Iterator[None]:
        """Give one training its own random numbers."""
        with torch.random.fork_rng(devices=self._gpus):
            torch.manual_seed(self.noise_seed(client, turn))
            yield

    def view(self, draw: Draw) -> ClientView:
        """New data, as their client sees them."""
        return ClientView(
            losses=lambda models: self.sample_losses(models, draw.train),
            true_mixture=torch.from_numpy(draw.true_mixture),
        )

    def observe(self, personal_model: Tensor, draw: Draw, client: int, turn: int) -> Observation:
        """New data, as a policy sees them."""
        chance = float(generator(self.seed, "chance", client, turn).random())
        return Observation(len(draw.train), lambda: self.mean_loss(personal_model, draw.train), chance)

    def mean_loss(self, vector: Tensor, samples: Samples) -> float:
        """The loss of a model (P,) on samples."""
        inputs, targets = self.inputs(samples)
        return float(self.loss(self.outputs(vector, inputs), targets))

    def inputs(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Images scaled for the network (n, C, H, W), and labels (n,)."""
        return self.ready(*self.federation.fetch(samples))

    def outputs(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """What a model (P,) says of inputs, without training it."""
        said: Tensor = outputs(self.model, self.layout, vector, inputs)
        return said

    def evaluate(self, models: Tensor, clusters: Tensor) -> Tensor:
        """The loss of each model (n, P) on the proxy set of the cluster beside it (n,)."""
        return ProxySets(self.model, self.loss, self.proxy_sets)(models, clusters)

    def sample_losses(self, models: Tensor, samples: Samples) -> Tensor:
        """The loss of every model (K, P) on every sample, (n, K)."""
        inputs, targets = self.inputs(samples)
        return torch.stack(
            [cross_entropy(self.outputs(vector, inputs), targets, reduction="none") for vector in models], dim=1
        )

    def accuracy(self, vector: Tensor, samples: Samples) -> float:
        """The share of samples a model (P,) gets right."""
        return self._score(vector, *self.inputs(samples))

    def cluster_accuracies(self, models: Tensor) -> list[float]:
        """How good each cluster's model is on held-out data of that cluster; one model may serve all."""
        return [
            self._score(models[min(k, len(models) - 1)], inputs, targets)
            for k, (inputs, targets) in enumerate(self.test_sets)
        ]

    @cached_property
    def flops(self) -> Flops:
        """Floating-point operations of one sample."""
        return count_flops(self.model, self.federation.input_shape)

    def _score(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> float:
        return float((self.outputs(vector, inputs).argmax(dim=1) == targets).double().mean())

    def ready(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Fetched images as the network takes them, and their labels."""
        return to_input(images, self.dtype), labels

    @property
    def _gpus(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []

    def _torch_seed(self, purpose: str, *key: int) -> int:
        return int(generator(self.seed, purpose, *key).integers(2**63))
