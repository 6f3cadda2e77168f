"""Clients that upload poisoned models.

A share of the clients, chosen by the seed, attacks at every upload; or one of them does, and uploads as often as all
others together. Turns, data and batches of the others are those of the honest run. Attackers know more than
clients do: the cluster models of the moment.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cdfl.algorithms import CDFL, Algorithm, Assignment
from cdfl.core import Evaluate, Reply, Upload
from cdfl.data import Draw, Federation, Samples
from cdfl.data.randomness import generator
from cdfl.sim.scenario_instance import ScenarioInstance
from cdfl.sim.simulation import Simulation
from cdfl.sim.time_models import Rng, Tick, TimeModel

POISONED = (
    "train, other labels"  # the name of an attacker's training samples, so that their labels are not the true ones
)


class Turn(NamedTuple):
    """What an attacker knows when it uploads."""

    trained: Tensor  # (P,) v, what it would upload if it were honest
    received: Tensor  # (P,) u
    clusters: Tensor  # (K, P)
    number: int  # of its uploads before this one
    client: int
    random: torch.Generator

    @property
    def change(self) -> Tensor:
        """Return v - u."""
        return self.trained - self.received


@dataclass(frozen=True)
class Attack:
    """Who attacks, and how: with other labels, or with another model than was trained. This one does neither."""

    share: float = 0.2  # of the clients
    is_fast: bool = False  # only one of these attacks, and uploads as often as all others together

    def attackers(self, seed: int, num_clients: int) -> frozenset[int]:
        """Who attacks in a run.

        >>> len(Attack(share=0.2).attackers(seed=0, num_clients=40))
        8
        """
        order = generator(seed, "attackers").permutation(num_clients)
        return frozenset(order[: 1 if self.is_fast else round(self.share * num_clients)].tolist())

    def labels(self, labels: Tensor, num_classes: int) -> Tensor:
        """What an attacker trains on instead of the true labels (n,)."""
        return labels

    def model(self, turn: Turn) -> Tensor:
        """What an attacker uploads instead of the model it trained (P,)."""
        return turn.trained


@dataclass(frozen=True)
class FlippedSign(Attack):
    """Uploads u - strength (v - u): as far from what it received as it came by training, the other way."""

    strength: float = 1.0

    def model(self, turn: Turn) -> Tensor:
        """Away from where training leads."""
        return turn.received - self.strength * turn.change


@dataclass(frozen=True)
class Negated(Attack):
    """Uploads -v: every number of the model with the other sign."""

    def model(self, turn: Turn) -> Tensor:
        """Not only the update, the whole model."""
        return -turn.trained


@dataclass(frozen=True)
class Noise(Attack):
    """Uploads u plus Gaussian noise that is `strength` times as long as the update v - u would have been."""

    strength: float = 10.0

    def model(self, turn: Turn) -> Tensor:
        """Nothing is left of what was trained but its length."""
        noise = torch.randn(turn.trained.shape, generator=turn.random, dtype=turn.trained.dtype)
        noise = noise.to(turn.trained.device)
        sent: Tensor = turn.received + noise * (self.strength * turn.change.norm() / noise.norm())
        return sent


@dataclass(frozen=True)
class FlippedLabels(Attack):
    """Trains, in earnest, on the label C - 1 - y instead of y: a 0 is a 9, a 1 an 8."""

    def labels(self, labels: Tensor, num_classes: int) -> Tensor:
        """The labels counted from the other end."""
        return num_classes - 1 - labels


@dataclass(frozen=True)
class Copies(Attack):
    """Uploads cluster models, in turn: each looks perfect, and the step along v - u goes astray."""

    def model(self, turn: Turn) -> Tensor:
        """The next cluster."""
        return turn.clusters[(turn.client + turn.number) % len(turn.clusters)]


@dataclass(frozen=True)
class TwoSteps(Attack):
    """Uploads absurd models first, so that large ones look usual; then u - 10 (v - u)."""

    absurd: int = 5

    def model(self, turn: Turn) -> Tensor:
        """Far away, then the wrong way."""
        return turn.received + (1e3 if turn.number < self.absurd else -10.0) * turn.change


@dataclass(frozen=True)
class SlowDrift(Attack):
    """Uploads u plus a step towards zero that is a little longer than an honest one, always the same way."""

    strength: float = 1.4

    def model(self, turn: Turn) -> Tensor:
        """Shrink the clusters."""
        way = -turn.clusters.mean(dim=0)
        sent: Tensor = turn.received + way * (self.strength * turn.change.norm() / way.norm())
        return sent


@dataclass(frozen=True)
class Idle(Attack):
    """Uploads what it received: the change is zero, and only the place of an upload is taken."""

    def model(self, turn: Turn) -> Tensor:
        """Nothing new."""
        return turn.received


@dataclass(frozen=True)
class Absent(Attack):
    """Uploads NaN, which every server refuses: what is lost is what honest clients in their place would have given."""

    def model(self, turn: Turn) -> Tensor:
        """No model."""
        return torch.full_like(turn.received, torch.nan)


@dataclass(frozen=True)
class OnAndOff(Attack):
    """Is honest for some uploads, so that it is trusted, then uploads the opposite change as long as is allowed."""

    honest: int = 2
    strength: float = 1.4

    def model(self, turn: Turn) -> Tensor:
        """Honest twice, then the wrong way."""
        if turn.number % (self.honest + 1) < self.honest:
            return turn.trained
        return turn.received - self.strength * turn.change


@dataclass(frozen=True)
class Hidden(Attack):
    """Uploads part of an honest change with a drift towards zero of twice its length."""

    useful: float = 0.6
    harmful: float = 1.2

    def model(self, turn: Turn) -> Tensor:
        """A step that is partly right."""
        way = -turn.clusters.mean(dim=0)
        drift = way * (self.harmful * turn.change.norm() / way.norm())
        sent: Tensor = turn.received + self.useful * turn.change + drift
        return sent


ATTACKS: dict[str, Attack] = {
    "flipped-sign": FlippedSign(),
    "negated": Negated(),
    "noise": Noise(),
    "flipped-labels": FlippedLabels(),
    "copies": Copies(),
    "two-steps": TwoSteps(),
    "slow-drift": SlowDrift(),
    "on-and-off": OnAndOff(),
    "hidden": Hidden(),
    "idle": Idle(),
    "absent": Absent(),
}


class AttackedFederation(Federation):
    """The same data; attackers see other labels when they train."""

    def __init__(self, honest: Federation, attack: Attack, attackers: frozenset[int]) -> None:
        super().__init__(honest.clusters, honest.drift, honest.sizes, honest.seed)
        self.attack = attack
        self.attackers = attackers

    def draw(self, client: int, update: int) -> Draw:
        """What the client holds; an attacker's training samples are marked."""
        draw = super().draw(client, update)
        return replace(draw, train=replace(draw.train, split=POISONED)) if client in self.attackers else draw

    def fetch(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """The images, and their labels as the client sees them."""
        if samples.split != POISONED:
            return super().fetch(samples)
        images, labels = super().fetch(replace(samples, split="train"))
        return images, self.attack.labels(labels, self.num_outputs)


class AttackedServer(CDFL):
    """CDFL that gets from attackers what they send."""

    def __init__(self, algorithm: CDFL, attack: Attack, attackers: frozenset[int], seed: int) -> None:
        super().__init__(algorithm.settings, algorithm.estimator, algorithm.defence)
        self.attack = attack
        self.attackers = attackers
        self.seed = seed
        self.uploads: Counter[int] = Counter()  # of each attacker

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Take one upload, poisoned or not, and answer it."""
        if upload.client_id in self.attackers:
            client = int(upload.client_id)
            number = self.uploads[client]
            self.uploads[client] += 1
            random = torch.Generator().manual_seed(int(generator(self.seed, "attack", client, number).integers(2**63)))
            received, clusters = assignment.personal_model, state.cluster_models
            sent = self.attack.model(Turn(upload.local_model, received, clusters, number, client, random))
            upload = replace(upload, local_model=sent, losses=None)  # known losses are those of what was trained
        return super().server_update(state, upload, assignment, evaluate)


@dataclass(frozen=True)
class OneFast:
    """The turns of another time model; after each, one client has a turn, and no others."""

    honest: TimeModel
    client: int

    def ticks(self, num_clients: int, rng: Rng) -> Iterator[Tick]:
        """Yield the ticks."""
        for tick in self.honest.ticks(num_clients, rng):
            if tick.kind != "turn" or tick.client != self.client:
                yield tick
            if tick.kind == "turn":
                yield Tick(tick.time, self.client)


def attacked_instance(instance: ScenarioInstance, attack: Attack) -> ScenarioInstance:
    """The same instance with attackers among its clients."""
    attackers = attack.attackers(instance.seed, instance.scenario.num_clients)
    other = instance.with_federation(AttackedFederation(instance.federation, attack, attackers))
    if attack.is_fast:
        other.scenario = replace(other.scenario, num_uploads=2 * other.scenario.num_uploads)
    return other


def attacked_server(algorithm: Algorithm, instance: ScenarioInstance, attack: Attack) -> AttackedServer:
    """The same server with attackers among its clients; only CDFL can be attacked."""
    if not isinstance(algorithm, CDFL):
        raise ValueError(f"{algorithm.name} cannot be attacked here; expected cdfl, which has the guard")
    return AttackedServer(
        algorithm, attack, attack.attackers(instance.seed, instance.scenario.num_clients), instance.seed
    )


def attacked(simulation: Simulation, attack: Attack) -> Simulation:
    """A run with attackers: `SimulationGroup` trains its clients in common stacks with those of other runs."""
    instance = attacked_instance(simulation.instance, attack)
    server = attacked_server(simulation.algorithm, instance, attack)
    time_model = simulation.time_model
    if attack.is_fast:
        time_model = OneFast(time_model, *server.attackers)
    return Simulation(instance, server, time_model, simulation.engines, simulation.policy)
