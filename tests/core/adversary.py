"""A small federation with clients that attack: linear classifiers, real training, held-out data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cdfl.core import DEFAULT, NEWCOMER, ClientMemory, Settings, Upload, initial_state, join, server_update

INPUTS, CLASSES, CLUSTERS = 8, 4, 3
SIZE = (INPUTS + 1) * CLASSES
SETTINGS = DEFAULT.replace(guard=True, max_staleness=None)


class Turn(NamedTuple):
    """What an attacker knows when it uploads."""

    trained: Tensor  # (P,) v, what an honest client would upload in its place
    received: Tensor  # (P,) u
    clusters: Tensor  # (K, P)
    number: int  # of uploads of all attackers before this one
    random: torch.Generator


Attack = Callable[[Turn], Tensor]


@dataclass
class Member:
    """A client: what it was sent, and what the server remembers of it."""

    model: Tensor
    epoch: int
    mixture: Tensor
    memory: ClientMemory = NEWCOMER
    outcomes: list[str] = field(default_factory=list)


class World:
    """A server, its clients and their data; everything follows from the seed."""

    def __init__(self, seed: int, settings: Settings = SETTINGS, num_clients: int = 20, proxy: int = 64) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.settings = settings
        self.means = 1.1 * torch.randn(CLUSTERS, CLASSES, INPUTS, generator=self.random)
        self.proxy = [self.samples(k, proxy) for k in range(CLUSTERS)]
        self.held_out = [self.samples(k, 3000) for k in range(CLUSTERS)]
        start = torch.zeros(SIZE)
        pretraining = [self.samples(k, 40) for k in range(CLUSTERS)]
        for inputs, targets in pretraining:  # a shared start
            start = trained(start, inputs, targets, steps=10)
        models = torch.stack([trained(start, *pair, steps=5) for pair in pretraining])
        self.state = initial_state(models, self.evaluate, SIZE)
        self.clients = [self.join(number % CLUSTERS) for number in range(num_clients)]

    def samples(self, cluster: int, count: int) -> tuple[Tensor, Tensor]:
        """Samples of one cluster."""
        targets = torch.randint(CLASSES, (count,), generator=self.random)
        return self.means[cluster][targets] + torch.randn(count, INPUTS, generator=self.random), targets

    def evaluate(self, models: Tensor, clusters: Tensor) -> Tensor:
        """The losses on the proxy sets; never those of the held-out data."""
        pairs = zip(models, clusters.tolist(), strict=True)
        return torch.stack([cross_entropy(outputs(model, self.proxy[k][0]), self.proxy[k][1]) for model, k in pairs])

    def join(self, main: int) -> Member:
        """A new client, most of whose data are of one cluster."""
        mixture = torch.full((CLUSTERS,), 0.1)
        mixture[main] += 1 - mixture.sum()
        reply = join(self.state, self.settings)
        return Member(reply.personal_model, reply.epoch, mixture)

    def train(self, member: Member) -> Tensor:
        """What an honest client uploads: trained on a few samples of its mixture."""
        counts = torch.multinomial(member.mixture, 30, replacement=True, generator=self.random).bincount(minlength=3)
        sets = [self.samples(k, int(count)) for k, count in enumerate(counts)]
        inputs, targets = (torch.cat(parts) for parts in zip(*sets, strict=True))
        return trained(member.model, inputs, targets, steps=8)

    def upload(self, member: Member, model: Tensor, time: float = 0.0) -> None:
        """One upload, as the server takes it: the base is what this client was really sent."""
        upload = Upload(model, member.epoch, "", base_model=member.model, time=time)
        self.state, reply = server_update(self.state, upload, self.settings, self.evaluate, member.memory)
        member.model, member.epoch, member.memory = reply.personal_model, reply.epoch, reply.client
        member.outcomes.append(reply.outcome)

    def attack(self, member: Member, attack: Attack, number: int) -> None:
        """One upload of an attacker."""
        self.upload(
            member, attack(Turn(self.train(member), member.model, self.state.cluster_models, number, self.random))
        )

    def pick(self, members: list[Member]) -> Member:
        """One of them, at random."""
        return members[int(torch.randint(len(members), (), generator=self.random))]

    def accuracy(self) -> float:
        """The mean accuracy of the clusters on their held-out data."""
        right = [
            (outputs(model, inputs).argmax(dim=1) == targets).double().mean()
            for model, (inputs, targets) in zip(self.state.cluster_models, self.held_out, strict=True)
        ]
        return float(torch.stack(right).mean())


def outputs(model: Tensor, inputs: Tensor) -> Tensor:
    """The outputs of a linear classifier (P,)."""
    weights = model.reshape(INPUTS + 1, CLASSES)
    return inputs @ weights[:-1] + weights[-1]


def trained(model: Tensor, inputs: Tensor, targets: Tensor, steps: int, rate: float = 0.2) -> Tensor:
    """Gradient descent."""
    model = model.clone().requires_grad_()
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(cross_entropy(outputs(model, inputs), targets), model)
        model = (model - rate * gradient).detach().requires_grad_()
    return model.detach()


def run(seed: int, attack: Attack | None = None, *, how: str = "fifth", uploads: int = 300, **options) -> World:
    """A run; `uploads` are those of honest clients.

    `how`: a "fifth" of the clients attacks; one "fast" client uploads as often as all others together; or as many
    uploads come from "new" clients, which join, upload once and go.
    """
    world = World(seed, **options)
    honest = world.clients[len(world.clients) // 5 :]
    attackers = world.clients[: len(world.clients) // 5]
    number = 0
    for _ in range(uploads):
        member = world.pick(honest)
        world.upload(member, world.train(member))
        turns = 1 if how != "fifth" or torch.rand((), generator=world.random) < 0.25 else 0
        for _ in range(turns if attack else 0):
            chosen = {"fifth": world.pick(attackers), "fast": attackers[0], "new": world.join(number % CLUSTERS)}[how]
            world.attack(chosen, attack, number)
            number += 1
    return world
