"""How many samples of each cluster a client holds, and how that changes from one update to the next.

A drift is a frozen value with one method, `counts`: a pure function of (seed, client, update), so that neither
the order nor the batching of clients changes anybody's data. A client starts with the main cluster
`client % num_clusters`. The paper's drift is here, others are in `cdfl.data.drifts`.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from cdfl.data.errors import DataError
from cdfl.data.randomness import generator

Rest = Literal["even", "uneven"]


class Drift(Protocol):
    """What a scenario needs to know about changing mixtures."""

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Samples of each cluster, int64 `(K,)`, summing to `size`."""
        ...


def checked_counts(drift: Drift, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
    """The counts of a drift, which may be somebody's own; ones that are no such counts are refused.

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
    """The paper's: 40 to 90 % from the client's main cluster, the rest from the others, drawn anew every time.

    The paper does not say how the rest is divided. `rest="even"`: each remaining sample comes from any other
    cluster with the same probability; `"uneven"`: with probabilities drawn from a flat Dirichlet distribution.

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
        """The client's main cluster at this update. Drifts that move it override this."""
        return client % num_clusters

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """The paper's mixture around the main cluster of this update."""
        rng = generator(seed, "mixture", client, update)
        return self.mix(rng, self.main(seed, client, update, num_clusters), size, num_clusters)

    def mix(self, rng: np.random.Generator, main: int, size: int, num_clusters: int) -> np.ndarray:
        """So many samples of cluster `main`, what remains from the others."""
        if num_clusters == 1:
            return np.array([size])
        fewest = math.ceil(self.low * size - 1e-9)  # 1e-9: 0.9 * 10 is 9, whatever floats make of it
        most = max(fewest, math.floor(self.high * size + 1e-9))
        counts = np.zeros(num_clusters, np.int64)
        counts[main] = rng.integers(fewest, most, endpoint=True)
        others = np.delete(np.arange(num_clusters), main)
        shares = np.full(len(others), 1 / len(others)) if self.rest == "even" else rng.dirichlet(np.ones(len(others)))
        counts[others] = rng.multinomial(size - counts[main], shares)
        return counts


def apportion(size: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to `size`, as near to `shares` as whole numbers come (largest remainders).

    >>> apportion(10, np.array([.55, .25, .2]))
    array([6, 2, 2])
    """
    exact = size * np.asarray(shares, np.float64) / np.sum(shares)
    counts: np.ndarray = np.floor(exact + 1e-9).astype(np.int64)  # 1e-9: 0.3 * 10 is 3, not 2.999...
    largest = np.argsort(counts - exact, kind="stable")[: size - int(counts.sum())]
    counts[largest] += 1
    return counts
