"""Who uploads when: the time model, which the paper leaves open and which decides how stale uploads are."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np

Turn = tuple[float, int]  # virtual time, client


class TimeModel(Protocol):
    """An endless order of uploads; whoever runs it stops."""

    def turns(self, num_clients: int, rng: np.random.Generator) -> Iterator[Turn]:
        """Yield (time, client), times never decreasing."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Every upload comes from a client drawn uniformly at random."""

    def turns(self, num_clients: int, rng: np.random.Generator) -> Iterator[Turn]:
        """One upload per unit of time."""
        for time in count(1):
            yield float(time), int(rng.integers(num_clients))


@dataclass(frozen=True)
class Sessions:
    """In every session each client uploads once, in a random order."""

    def turns(self, num_clients: int, rng: np.random.Generator) -> Iterator[Turn]:
        """One upload per unit of time."""
        for session in count():
            for place, client in enumerate(rng.permutation(num_clients)):
                yield float(session * num_clients + place + 1), int(client)


@dataclass(frozen=True)
class FewActive:
    """A few clients take turns for a while, then the next few; so uploads are hardly ever stale."""

    active: int = 4
    uploads_each: int = 5

    def turns(self, num_clients: int, rng: np.random.Generator) -> Iterator[Turn]:
        """One upload per unit of time."""
        time = 0
        while True:
            order = rng.permutation(num_clients)
            for first in range(0, num_clients, self.active):
                for _ in range(self.uploads_each):
                    for client in order[first : first + self.active]:
                        time += 1
                        yield float(time), int(client)


@dataclass(frozen=True)
class Exponential:
    """Clients wait an exponential time between uploads, at rates of their own: some are always there, some rarely.

    Rates are log-normal with deviation `unevenness` and mean 1 an hour, say; 0 makes all clients alike.
    """

    unevenness: float = 1.0

    def turns(self, num_clients: int, rng: np.random.Generator) -> Iterator[Turn]:
        """Draw the next upload of all: waiting times without memory need no queue."""
        rates = rng.lognormal(-(self.unevenness**2) / 2, self.unevenness, num_clients)
        shares = np.cumsum(rates) / rates.sum()
        time = 0.0
        while True:
            time += rng.exponential(1 / rates.sum())
            yield time, int(np.searchsorted(shares, rng.random(), side="right"))


TIME_MODELS: dict[str, TimeModel] = {
    "uniform": Uniform(),
    "sessions": Sessions(),
    "few-active": FewActive(),
    "exponential": Exponential(),
}
