"""An instance of a scenario: its data and the clients that a run simulates, evaluated one model at a time."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from cdfl.algorithms import Algorithm, ClientView
from cdfl.core import Layout, Settings, flatten
from cdfl.core.batches import batch_plan
from cdfl.core.experts import combine_for
from cdfl.data import Draw, Federation, Samples
from cdfl.data.randomness import generator
from cdfl.problems import ProblemInstance
from cdfl.run_events import Separated
from cdfl.scenarios import Scenario
from cdfl.sim.flops import Flops, count_flops
from cdfl.sim.time_models import Tick, TimeModel, checked_ticks
from cdfl.upload_policies import Observation

if TYPE_CHECKING:
    from cdfl.sim.run_router import Routing

# A run ends after this many turns for each planned upload, even if its policy rarely uploads.
TURNS_PER_UPLOAD = 50
# It caches the data of this many turns: runs of one seed share it and need the same data at about the same time.
DRAWS_KEPT = 256


@dataclass(frozen=True, eq=False)
class TurnData:
    """A client's data at a turn, and the random choices of its training."""

    draw: Draw
    plan: Tensor  # (steps, batch) its batches
    noise_seed: int


def client_instance(instance: "ScenarioInstance", algorithm: Algorithm) -> "ScenarioInstance":
    """Return the instance with the network that an algorithm's clients train; mostly that of a cluster."""
    network = algorithm.network(instance.model, instance.federation.num_clusters)
    return instance if network is instance.model else instance.with_network(network)


class OwnView(NamedTuple):
    """What the router tells a client, for its policy."""

    mixture: Tensor  # (K,) its own estimate now
    before: Tensor  # (K,) the same at its last upload; before that, the mixture of its reply
    strange: float  # share of inputs that fit no cluster


class ScenarioInstance(ProblemInstance):
    """What `reference_simulation` and `simulation` share. Its methods compute one model at a time."""

    def __init__(
        self,
        scenario: Scenario,
        federation: Federation,
        settings: Settings,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(scenario, federation, settings, dtype)
        self.scenario = scenario
        self.start: Tensor | None = None  # (K, P) the clusters after pre-training
        self.combine = combine_for(self.loss)  # merges the outputs of experts
        self.separated: Separated | None = None  # whether they can be told apart
        self.test_sets = self.sets("test")
        self.turn_data = lru_cache(maxsize=DRAWS_KEPT)(self._turn_data)

    def with_federation(self, federation: Federation) -> "ScenarioInstance":
        """Return the same instance with other client data."""
        other = copy.copy(self)
        other.federation = federation
        other.__dict__.pop("routing", None)
        other.turn_data = lru_cache(maxsize=DRAWS_KEPT)(other._turn_data)
        return other

    def with_network(self, network: nn.Module) -> "ScenarioInstance":
        """Return the same data with another network."""
        other = copy.copy(self)
        for name in ("routing", "flops", "output_size"):
            other.__dict__.pop(name, None)
        other.model = network.to(self.device, self.dtype)
        other.layout = Layout.of(other.model)
        return other

    def _turn_data(self, client: int, turn: int) -> TurnData:
        """Return a client's data at a turn: a pure function of (seed, client, turn), so it can be cached."""
        draw = self.federation.draw(client, turn)
        return TurnData(draw, self.plan(draw, client, turn), self.noise_seed(client, turn))

    @property
    def model_bytes(self) -> int:
        """The size of one model on the wire."""
        return self.layout.size * self.dtype.itemsize

    def plan(self, draw: Draw, client: int, turn: int) -> Tensor:
        """Return the samples of each batch, (steps, batch): a pure function of (seed, client, turn)."""
        shuffle = torch.Generator().manual_seed(self.torch_seed("batches", client, turn))
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
        return self.torch_seed("noise", client, turn)

    @contextmanager
    def noise(self, client: int, turn: int) -> Iterator[None]:
        """Seed the random numbers of one training, and restore the state afterwards."""
        with torch.random.fork_rng(devices=self.gpus):
            torch.manual_seed(self.noise_seed(client, turn))
            yield

    def view(self, draw: Draw) -> ClientView:
        """Return new data as the client sees them."""
        return ClientView(
            losses=lambda models: self.sample_losses(models, draw.train),
            true_mixture=torch.from_numpy(draw.true_mixture),
        )

    def observe(
        self, personal_model: Tensor, draw: Draw, client: int, turn: int, own: OwnView | None = None
    ) -> Observation:
        """Return new data as a policy sees them."""
        chance = float(generator(self.seed, "chance", client, turn).random())
        told: dict[str, Any] = {}
        if own is not None:
            told = {"mixture": tuple(own.mixture.tolist()), "strange": own.strange}
            told["mixture_moved"] = float((own.mixture.cpu() - own.before.cpu()).abs().sum()) / 2
        return Observation(len(draw.train), lambda: self.mean_loss(personal_model, draw.train), chance, **told)

    def mean_loss(self, vector: Tensor, samples: Samples) -> float:
        """Return the loss of a model (P,) on samples."""
        inputs, targets = self.inputs(samples)
        return float(self.loss(self.outputs(vector, inputs), targets))

    def evaluate(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the proxy set of its cluster (n,)."""
        sets = [self.proxy_sets[cluster] for cluster in clusters.tolist()]
        losses = [
            self.loss(self.outputs(own, inputs), targets) for own, (inputs, targets) in zip(models, sets, strict=True)
        ]
        return torch.stack(losses)

    def sample_losses(self, models: Tensor, samples: Samples) -> Tensor:
        """Return the loss of every model (K, P) on every sample, (n, K)."""
        return self.losses_of_each(models, *self.inputs(samples))

    def scores(self, vector: Tensor, samples: Samples) -> list[float]:
        """Return the score of a model (P,) on samples, by each metric."""
        return self._scores(vector, *self.inputs(samples))

    def cluster_scores(self, models: Tensor) -> list[list[float]]:
        """Return the score of each cluster's model on its test set, by each metric; one model may serve all."""
        found = [
            self._scores(models[min(k, len(models) - 1)], inputs, targets)
            for k, (inputs, targets) in enumerate(self.test_sets)
        ]
        return [list(own) for own in zip(*found, strict=True)]

    @cached_property
    def routing(self) -> "Routing":
        """The router of this instance, trained when it is first needed."""
        from cdfl.sim.run_router import Routing  # that module needs this one

        return Routing(self)

    @cached_property
    def flops(self) -> Flops:
        """The floating-point operations of one sample."""
        return count_flops(copy.deepcopy(self.model).cpu(), self.examples[0].cpu())

    @cached_property
    def output_size(self) -> int:
        """The number of outputs for one sample."""
        return max(1, self.outputs(flatten(self.model), self.examples[0])[0].numel())

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        """Two samples, to try the network with."""
        inputs, targets = self.proxy_sets[0]
        few = torch.arange(2, device=inputs.device) % len(inputs)
        return inputs[few], targets[few]

    def _scores(self, vector: Tensor, inputs: Tensor, targets: Tensor) -> list[float]:
        guesses = self.outputs(vector, inputs)
        return [float(metric(guesses, targets)) for metric in self.metrics]
