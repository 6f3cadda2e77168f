"""Other ways in which clients' data change, for questions that the paper does not ask.

A newcomer among the *clients* needs no drift: any client number that was not used before is one.
"""

from dataclasses import dataclass

import numpy as np

from cdfl.data.drift import Drift, PaperDrift, apportion
from cdfl.data.randomness import generator


@dataclass(frozen=True)
class Static(PaperDrift):
    """No drift: the mixture of the first update for ever; the samples are fresh each time."""

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """The shares of update 0, for this number of samples."""
        first = super().counts(seed, client, 0, 1_000_000, num_clusters)
        return apportion(size, first)


@dataclass(frozen=True)
class Sudden(PaperDrift):
    """Every `every` updates, the client's main cluster jumps to another one drawn by chance."""

    every: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("every", self.every)

    def main(self, seed: int, client: int, update: int, num_clusters: int) -> int:
        """The first main cluster plus all jumps so far, none of which stays in place."""
        jumps = update // self.every
        if num_clusters == 1 or not jumps:
            return client % num_clusters
        steps = generator(seed, "jumps", client).integers(1, num_clusters, jumps)
        return int((client + steps.sum()) % num_clusters)


@dataclass(frozen=True)
class Seasons(PaperDrift):
    """The main cluster goes round: the next one every `length` updates, and the first one comes back.

    >>> [Seasons(length=2).main(seed=0, client=1, update=u, num_clusters=3) for u in range(8)]
    [1, 1, 2, 2, 0, 0, 1, 1]
    """

    length: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("length", self.length)

    def main(self, seed: int, client: int, update: int, num_clusters: int) -> int:
        """The cluster whose season it is for this client."""
        return (client + update // self.length) % num_clusters


@dataclass(frozen=True)
class Gradual(PaperDrift):
    """The mixture slides from one of the paper's mixtures to the next within `period` updates.

    The main cluster of each is the one after, so that a client slowly moves through all clusters.
    """

    period: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("period", self.period)

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """A straight line between the two mixtures around this update."""
        step, done = divmod(update, self.period)
        now, then = (
            PaperDrift.counts(self, seed, client, at * self.period, 1_000_000, num_clusters) for at in (step, step + 1)
        )
        return apportion(size, now * (self.period - done) + then * done)

    def main(self, seed: int, client: int, update: int, num_clusters: int) -> int:
        """The next cluster at each end of a period."""
        return (client + update // self.period) % num_clusters


@dataclass(frozen=True)
class Newcomer(PaperDrift):
    """A cluster that nobody has seen arrives: until a client's update `at`, none of its data come from there."""

    cluster: int = -1  # counted from the end where negative: the last one
    at: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("at", self.at)

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """The paper's mixture, among the clusters that are there by now."""
        if num_clusters == 1 or update >= self.at:
            return super().counts(seed, client, update, size, num_clusters)
        if not -num_clusters <= self.cluster < num_clusters:
            raise ValueError(f"the newcomer is cluster {self.cluster}, but there are only {num_clusters}")
        present = np.delete(np.arange(num_clusters), self.cluster)
        own = client % num_clusters
        # A client whose own cluster is not there yet goes to another one, by its number.
        main = int(np.searchsorted(present, own)) if own in present else client // num_clusters % (num_clusters - 1)
        counts = np.zeros(num_clusters, np.int64)
        counts[present] = self.mix(generator(seed, "mixture", client, update), main, size, num_clusters - 1)
        return counts


@dataclass(frozen=True)
class Dirichlet:
    """Mixtures without a main cluster: drawn anew from a symmetric Dirichlet distribution every time.

    A small concentration gives nearly pure clients, a large one nearly equal ones.
    """

    concentration: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.concentration < np.inf:
            raise ValueError(f"concentration is {self.concentration}; expected a positive number")

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Shares by chance, whole samples."""
        rng = generator(seed, "mixture", client, update)
        shares = rng.dirichlet(np.full(num_clusters, self.concentration))
        if not np.isfinite(shares).all():  # all underflowed, for concentrations near 0: one cluster only
            shares = np.eye(num_clusters)[rng.integers(num_clusters)]
        return apportion(size, shares)


DRIFTS: dict[str, type[Drift]] = {
    "paper": PaperDrift,
    "static": Static,
    "gradual": Gradual,
    "sudden": Sudden,
    "seasons": Seasons,
    "newcomer": Newcomer,
    "dirichlet": Dirichlet,
}


def _positive(name: str, number: int) -> None:
    if number < 1:
        raise ValueError(f"{name} is {number}; expected at least 1 update")
