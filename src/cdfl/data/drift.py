"""Drifts: how many samples of each cluster a client holds, and how that changes from one update to the next.

A drift is a frozen value with one method, `counts`: a pure function of (seed, client, update), so that a client's
data do not depend on the order in which clients are simulated. A client starts with the main cluster
`client % num_clusters`. To simulate a new client, use a client number that was not used before.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from cdfl.data.errors import DataError
from cdfl.data.randomness import generator

Rest = Literal["even", "uneven"]


class Drift(Protocol):
    """How a client's mixture changes."""

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Return the number of samples of each cluster, int64 `(K,)`; they sum to `size`."""
        ...


def checked_counts(drift: Drift, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
    """Return a drift's counts; raise DataError if they are not K whole numbers that sum to `size`.

    >>> class Halves:
    ...     def counts(self, seed, client, update, size, num_clusters):
    ...         return [size // 2, size // 2]
    >>> checked_counts(Halves(), seed=0, client=0, update=0, size=4, num_clusters=2)
    array([2, 2])
    >>> checked_counts(Halves(), seed=0, client=0, update=0, size=5, num_clusters=2)
    Traceback (most recent call last):
    cdfl.data.errors.DataError: Halves.counts gave [2, 2] for client 0, update 0; expected 2 whole numbers of at least 0
    that sum to size, 5
    """
    found = drift.counts(seed, client, update, size, num_clusters)
    counts = np.asarray(found) if isinstance(found, np.ndarray | list | tuple) else np.empty(0)
    whole = counts.shape == (num_clusters,) and counts.dtype.kind in "iu"
    if not (whole and bool((counts >= 0).all()) and int(counts.sum()) == size):
        given = found.tolist() if isinstance(found, np.ndarray) else found
        raise DataError(
            f"{type(drift).__name__}.counts gave {given!r} for client {client}, update {update}; expected "
            f"{num_clusters} whole numbers of at least 0 that sum to size, {size}"
        )
    return counts.astype(np.int64, copy=False)


@dataclass(frozen=True)
class PaperDrift:
    """The paper's drift: 40 to 90 % from the client's main cluster and the rest from the others, redrawn every time.

    The paper does not say how the rest is divided. With `rest="even"` each remaining sample comes from any other
    cluster with the same probability; with `"uneven"` the probabilities are drawn from a flat Dirichlet distribution.

    >>> PaperDrift().counts(seed=0, client=1, update=0, size=1000, num_clusters=4)
    array([192, 499, 161, 148])
    """

    low: float = 0.4
    high: float = 0.9
    rest: Rest = "even"

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"a main share from {self.low} to {self.high}; expected 0 <= low <= high <= 1")
        if self.rest not in ("even", "uneven"):
            raise ValueError(f'rest is {self.rest!r}; expected "even" or "uneven"')

    def main(self, seed: int, client: int, update: int, num_clusters: int) -> int:
        """Return the client's main cluster at this update. Drifts that move it override this."""
        return client % num_clusters

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Draw the paper's mixture around the main cluster of this update."""
        rng = generator(seed, "mixture", client, update)
        return self.mix(rng, self.main(seed, client, update, num_clusters), size, num_clusters)

    def mix(self, rng: np.random.Generator, main: int, size: int, num_clusters: int) -> np.ndarray:
        """Draw how many samples come from cluster `main`, and divide the rest among the others."""
        if num_clusters == 1:
            return np.array([size])
        fewest = math.ceil(self.low * size - 1e-9)  # 1e-9: 0.9 * 10 counts as 9 despite rounding
        most = max(fewest, math.floor(self.high * size + 1e-9))
        counts = np.zeros(num_clusters, np.int64)
        counts[main] = rng.integers(fewest, most, endpoint=True)
        others = np.delete(np.arange(num_clusters), main)
        shares = np.full(len(others), 1 / len(others)) if self.rest == "even" else rng.dirichlet(np.ones(len(others)))
        counts[others] = rng.multinomial(size - counts[main], shares)
        return counts


@dataclass(frozen=True)
class Static(PaperDrift):
    """No drift: the client keeps the mixture of its first update; the samples are fresh each time."""

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Return the shares of update 0, for this number of samples."""
        first = super().counts(seed, client, 0, 1_000_000, num_clusters)
        return apportion(size, first)


@dataclass(frozen=True)
class Sudden(PaperDrift):
    """Every `every` updates, the client's main cluster jumps to another one at random."""

    every: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("every", self.every)

    def main(self, seed: int, client: int, update: int, num_clusters: int) -> int:
        """Return the first main cluster plus all jumps so far; every jump changes the cluster."""
        jumps = update // self.every
        if num_clusters == 1 or not jumps:
            return client % num_clusters
        steps = generator(seed, "jumps", client).integers(1, num_clusters, jumps)
        return int((client + steps.sum()) % num_clusters)


@dataclass(frozen=True)
class Seasons(PaperDrift):
    """The main cluster cycles through all clusters: the next one every `length` updates.

    >>> [Seasons(length=2).main(seed=0, client=1, update=u, num_clusters=3) for u in range(8)]
    [1, 1, 2, 2, 0, 0, 1, 1]
    """

    length: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("length", self.length)

    def main(self, seed: int, client: int, update: int, num_clusters: int) -> int:
        """Return the cluster of this client's season."""
        return (client + update // self.length) % num_clusters


@dataclass(frozen=True)
class Gradual(PaperDrift):
    """The mixture slides from one of the paper's mixtures to the next within `period` updates.

    Each has the next main cluster, so that a client slowly moves through all clusters.
    """

    period: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("period", self.period)

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Interpolate linearly between the two mixtures around this update."""
        step, done = divmod(update, self.period)
        now, then = (
            PaperDrift.counts(self, seed, client, at * self.period, 1_000_000, num_clusters) for at in (step, step + 1)
        )
        return apportion(size, now * (self.period - done) + then * done)

    def main(self, seed: int, client: int, update: int, num_clusters: int) -> int:
        """Return the main cluster, which advances by one each period."""
        return (client + update // self.period) % num_clusters


@dataclass(frozen=True)
class Newcomer(PaperDrift):
    """A new cluster appears: until its update `at`, a client has no data of `cluster`."""

    cluster: int = -1  # negative numbers count from the end
    at: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("at", self.at)

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Draw the paper's mixture among the clusters that have appeared."""
        if num_clusters == 1 or update >= self.at:
            return super().counts(seed, client, update, size, num_clusters)
        if not -num_clusters <= self.cluster < num_clusters:
            raise ValueError(f"the newcomer is cluster {self.cluster}, but there are only {num_clusters}")
        present = np.delete(np.arange(num_clusters), self.cluster)
        own = client % num_clusters
        # The main cluster of this client has not appeared yet: choose another one by the client's number.
        main = int(np.searchsorted(present, own)) if own in present else client // num_clusters % (num_clusters - 1)
        counts = np.zeros(num_clusters, np.int64)
        counts[present] = self.mix(generator(seed, "mixture", client, update), main, size, num_clusters - 1)
        return counts


@dataclass(frozen=True)
class Dirichlet:
    """Mixtures without a main cluster, redrawn from a symmetric Dirichlet distribution every time.

    With a small concentration a client has nearly one cluster; with a large one, nearly equal shares.
    """

    concentration: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.concentration < np.inf:
            raise ValueError(f"concentration is {self.concentration}; expected a positive number")

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Draw shares, and round them to whole samples."""
        rng = generator(seed, "mixture", client, update)
        shares = rng.dirichlet(np.full(num_clusters, self.concentration))
        if not np.isfinite(shares).all():  # all shares underflow at concentrations near 0: choose one cluster
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


def apportion(size: int, shares: np.ndarray) -> np.ndarray:
    """Divide `size` by `shares` into whole numbers, by largest remainders.

    >>> apportion(10, np.array([.55, .25, .2]))
    array([6, 2, 2])
    """
    exact = size * np.asarray(shares, np.float64) / np.sum(shares)
    counts: np.ndarray = np.floor(exact + 1e-9).astype(np.int64)  # 1e-9: 0.3 * 10 is 3, not 2.999...
    largest = np.argsort(counts - exact, kind="stable")[: size - int(counts.sum())]
    counts[largest] += 1
    return counts


def _positive(name: str, number: int) -> None:
    if number < 1:
        raise ValueError(f"{name} is {number}; expected at least 1 update")
