"""How many samples of each cluster a client holds, and how that changes from one update to the next.

A drift is a frozen value with one method, `counts`: a pure function of (seed, client, update), so that
neither the order nor the batching of clients changes anybody's data.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from cdfl.data.randomness import generator

Rest = Literal["even", "uneven"]


class Drift(Protocol):
    """What a scenario needs to know about changing mixtures."""

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Count the samples of each cluster, int64 `(K,)`, summing to `size`."""
        ...


@dataclass(frozen=True)
class PaperDrift:
    """The paper's: 40 to 90 % from the client's main cluster, the rest from the others, anew every time.

    The main cluster is `client % num_clusters`.

    The paper does not say how the rest is divided. `rest="even"`: each remaining sample comes from any other
    cluster with the same probability; `"uneven"`: with probabilities from a flat Dirichlet distribution.

    >>> PaperDrift().counts(seed=0, client=1, update=0, size=1000, num_clusters=4)
    array([165, 575, 136, 124])
    """

    low: float = 0.4
    high: float = 0.9
    rest: Rest = "even"

    def __post_init__(self) -> None:
        check_range(self.low, self.high)
        check_rest(self.rest)

    def counts(self, seed: int, client: int, update: int, size: int, num_clusters: int) -> np.ndarray:
        """Draw the main cluster's share, then divide the rest."""
        rng = generator(seed, "mixture", client, update)
        return main_and_rest(rng, client % num_clusters, self.low, self.high, self.rest, size, num_clusters)


def main_and_rest(
    rng: np.random.Generator, main: int, low: float, high: float, rest: Rest, size: int, num_clusters: int
) -> np.ndarray:
    """Take a uniform share between `low` and `high` from cluster `main`, what remains from the others."""
    counts = np.zeros(num_clusters, np.int64)
    # Inside the bounds also after rounding to whole samples, where a whole number lies between them.
    fewest, most = int(np.ceil(low * size)), int(np.floor(high * size))
    wanted = round(rng.uniform(low, high) * size)
    counts[main] = size if num_clusters == 1 else max(min(wanted, max(most, fewest)), fewest)
    others = np.delete(np.arange(num_clusters), main)
    if len(others):
        shares = np.ones(len(others)) / len(others) if rest == "even" else rng.dirichlet(np.ones(len(others)))
        counts[others] = rng.multinomial(size - counts[main], shares)
    return counts


def apportion(size: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to `size`, as near to `shares` as whole numbers come (largest remainders).

    >>> apportion(10, np.array([.55, .25, .2]))
    array([6, 2, 2])
    """
    exact = size * np.asarray(shares, np.float64) / np.sum(shares)
    counts: np.ndarray = np.floor(exact + 1e-9).astype(np.int64)
    missing = size - int(counts.sum())
    largest = np.argsort(counts - exact, kind="stable")[:missing]
    counts[largest] += 1
    return counts


def check_range(low: float, high: float) -> None:
    """Refuse shares that are none."""
    if not 0 <= low <= high <= 1:
        raise ValueError(f"a main share between {low} and {high} was asked for; expected 0 <= low <= high <= 1")


def check_rest(rest: str) -> None:
    """Refuse what is not a `Rest`."""
    if rest not in ("even", "uneven"):
        raise ValueError(f'rest is {rest!r}; expected "even" or "uneven"')
