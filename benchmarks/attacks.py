"""Clients that upload poisoned models.

A share of the clients, chosen by the seed, attacks at every upload. Turns, data and batches are those of the honest
run. Attackers do not cooperate; each knows what a client knows.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cdfl.algorithms import CDFL, Algorithm, Assignment
from cdfl.core import Evaluate, Reply, Upload
from cdfl.data import Draw, Federation, Samples
from cdfl.data.randomness import generator
from cdfl.sim.simulation import Simulation
from cdfl.sim.workload import Workload

POISONED = (
    "train, other labels"  # the name of an attacker's training samples, so that their labels are not the true ones
)


@dataclass(frozen=True)
class Attack:
    """Who attacks, and how: with other labels, or with another model than was trained. This one does neither."""

    share: float = 0.2  # of the clients

    def attackers(self, seed: int, num_clients: int) -> frozenset[int]:
        """Who attacks in a run.

        >>> len(Attack(share=0.2).attackers(seed=0, num_clients=40))
        8
        """
        order = generator(seed, "attackers").permutation(num_clients)
        return frozenset(order[: round(self.share * num_clients)].tolist())

    def labels(self, labels: Tensor, num_classes: int) -> Tensor:
        """What an attacker trains on instead of the true labels (n,)."""
        return labels

    def model(self, trained: Tensor, received: Tensor, random: torch.Generator) -> Tensor:
        """What an attacker uploads instead of the model it trained (P,)."""
        return trained


@dataclass(frozen=True)
class FlippedSign(Attack):
    """Uploads u - strength (v - u): as far from what it received as it came by training, the other way.

    >>> FlippedSign().model(torch.tensor([3.0]), torch.tensor([1.0]), torch.Generator())
    tensor([-1.])
    """

    strength: float = 1.0

    def model(self, trained: Tensor, received: Tensor, random: torch.Generator) -> Tensor:
        """Away from where training leads."""
        return received - self.strength * (trained - received)


@dataclass(frozen=True)
class Negated(Attack):
    """Uploads -v: every number of the model with the other sign."""

    def model(self, trained: Tensor, received: Tensor, random: torch.Generator) -> Tensor:
        """Not only the update, the whole model."""
        return -trained


@dataclass(frozen=True)
class Noise(Attack):
    """Uploads u plus Gaussian noise that is `strength` times as long as the update v - u would have been."""

    strength: float = 10.0

    def model(self, trained: Tensor, received: Tensor, random: torch.Generator) -> Tensor:
        """Nothing is left of what was trained but its length."""
        noise = torch.randn(trained.shape, generator=random, dtype=trained.dtype).to(trained.device)
        sent: Tensor = received + noise * (self.strength * (trained - received).norm() / noise.norm())
        return sent


@dataclass(frozen=True)
class FlippedLabels(Attack):
    """Trains, in earnest, on the label C - 1 - y instead of y: a 0 is a 9, a 1 an 8."""

    def labels(self, labels: Tensor, num_classes: int) -> Tensor:
        """The labels counted from the other end."""
        return num_classes - 1 - labels


ATTACKS: dict[str, Attack] = {
    "flipped-sign": FlippedSign(),
    "negated": Negated(),
    "noise": Noise(),
    "flipped-labels": FlippedLabels(),
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

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Take one upload, poisoned or not, and answer it."""
        if upload.client_id in self.attackers:
            key = int(upload.client_id), upload.base_epoch
            random = torch.Generator().manual_seed(int(generator(self.seed, "attack", *key).integers(2**63)))
            sent = self.attack.model(upload.local_model, assignment.personal_model, random)
            upload = replace(upload, local_model=sent, losses=None)  # known losses are those of what was trained
        return super().server_update(state, upload, assignment, evaluate)


def attacked_workload(workload: Workload, attack: Attack) -> Workload:
    """The same learning problem with attackers among its clients."""
    attackers = attack.attackers(workload.seed, workload.scenario.num_clients)
    return workload.with_federation(AttackedFederation(workload.federation, attack, attackers))


def attacked_server(algorithm: Algorithm, workload: Workload, attack: Attack) -> Algorithm:
    """The same server with attackers among its clients; only CDFL can be attacked."""
    if not isinstance(algorithm, CDFL):
        raise ValueError(f"{algorithm.name} cannot be attacked here; expected cdfl, which has the harm test")
    return AttackedServer(
        algorithm, attack, attack.attackers(workload.seed, workload.scenario.num_clients), workload.seed
    )


def attacked(simulation: Simulation, attack: Attack) -> Simulation:
    """A run with attackers: `SimulationGroup` trains its clients in common stacks with those of other runs."""
    workload = attacked_workload(simulation.workload, attack)
    server = attacked_server(simulation.algorithm, workload, attack)
    return Simulation(workload, server, simulation.time_model, simulation.engines, simulation.policy)
