"""Split samples between server and clients. No sample is in two of the four sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cdfl.data.dataset import Dataset, Half
from cdfl.data.errors import DataError
from cdfl.data.randomness import generator

SPLITS = ("pretraining", "train", "proxy", "test")


@dataclass(frozen=True)
class Sizes:
    """Numbers of samples. The defaults are the paper's, except `test`, which it does not give."""

    low: int = 500  # fewest training samples of a client between two uploads
    high: int = 2000  # most
    test: int = 500  # test samples of the same mixture
    pretraining: int = 3000  # samples of each cluster, from the train half
    proxy: int = 1000  # samples of each cluster, from the test half

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}; expected 1 <= low <= high")
        for name in ("test", "pretraining", "proxy"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1 sample")

    @classmethod
    def fitting(cls, train: int, test: int) -> Sizes:
        """Return sizes for clusters with these numbers of samples in their halves; at most the paper's.

        >>> Sizes.fitting(train=750, test=250)
        Sizes(low=31, high=125, test=125, pretraining=250, proxy=125)
        """
        pretraining, proxy = max(1, min(3000, train // 3)), max(1, min(1000, test // 2))
        high = max(1, min(2000, (train - pretraining) // 4))
        return cls(max(1, high // 4), high, max(1, min(500, test - proxy)), pretraining, proxy)


@dataclass(frozen=True, eq=False)
class Split:
    """Positions in the two halves of a dataset: of `pretraining` and `train`, and of `proxy` and `test`."""

    pretraining: np.ndarray
    train: np.ndarray
    proxy: np.ndarray
    test: np.ndarray
    notes: tuple[str, ...] = ()
    scored: Half = "test"  # the half that `proxy` and `test` are in; "train" if runs are scored on validation samples

    def part(self, name: str) -> np.ndarray:
        """Return one of the four sets by its name."""
        if name not in SPLITS:
            raise ValueError(f"there is no split {name!r}; expected one of {', '.join(SPLITS)}")
        found: np.ndarray = getattr(self, name)
        return found

    def half(self, name: str) -> Half:
        """Return the half that a set is in."""
        return "train" if name in ("pretraining", "train") else self.scored


def split_dataset(
    dataset: Dataset, sizes: Sizes, seed: int, *, validation: bool = False, clients: bool = True
) -> Split:
    """Split at random, as a function of only the seed and the number of samples (and their groups).

    So all clusters of the same base samples (rotations, shifts) have the same split, and no rotated or blurred copy of
    a training image is in a test set.

    With `validation`, a part of the train half takes the place of the test half. It is the same for every seed, so
    choices made on it never saw a sample that a table is scored on. Without `clients`, the server may take all samples.
    """
    scored: Half = "train" if validation else "test"
    train, test = _validation_halves(dataset) if validation else map(np.arange, _sizes(dataset))
    pretraining = _server_share(sizes.pretraining, len(train), clients)
    proxy = _server_share(sizes.proxy, len(test), clients)
    notes = tuple(
        f"{dataset.name}: {name} set of {got:,} samples instead of {wanted:,}: the {half} half has only "
        f"{available:,}; provide more, or set sizes=Sizes({name}={got})"
        for name, got, wanted, half, available in (
            ("pretraining", pretraining, sizes.pretraining, "train", len(train)),
            ("proxy", proxy, sizes.proxy, "test", len(test)),
        )
        if got < wanted
    )
    train_groups, test_groups = dataset.groups("train"), dataset.groups(scored)
    first, second = _divide(train, train_groups, pretraining, generator(seed, "split train"))
    third, fourth = _divide(test, test_groups, proxy, generator(seed, "split test"))
    if clients and not (len(second) and len(fourth)):
        raise DataError(
            f"{dataset.name}: {len(train)} + {len(test)} samples leave none for clients beside the server's "
            f"{len(first)} + {len(third)}; provide more samples"
        )
    return Split(first, second, third, fourth, notes, scored)


def half_sizes(datasets: Iterable[Dataset], *, validation: bool) -> tuple[int, int]:
    """Return the smallest train and test halves of any dataset, as `split_dataset` sees them."""
    found = [
        [len(part) for part in _validation_halves(each)] if validation else list(_sizes(each)) for each in datasets
    ]
    return min(train for train, _ in found), min(test for _, test in found)


def _sizes(dataset: Dataset) -> tuple[int, int]:
    return len(dataset.train_targets), len(dataset.test_targets)


def _validation_halves(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Divide the train half: what is left to train on, and as many samples as the test half has, a quarter at most."""
    train, test = _sizes(dataset)
    held = max(1, min(test, train // 4))
    validation, rest = _divide(np.arange(train), dataset.groups("train"), held, generator(0, "validation"))
    return rest, validation


def _divide(
    positions: np.ndarray, groups: np.ndarray | None, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Divide positions at random: `count` of them, or a few more where that keeps a group whole, and the others."""
    if groups is None:
        order = positions[rng.permutation(len(positions))]
    else:
        kinds, own = np.unique(groups[positions], return_inverse=True)
        rank = rng.permutation(len(kinds))[own]  # of each position's group
        order = positions[np.argsort(rank, kind="stable")]
        ends = np.flatnonzero(np.diff(np.sort(rank))) + 1  # where one group ends and the next begins
        count = int(ends[min(int(np.searchsorted(ends, count)), len(ends) - 1)]) if len(ends) else count
    return np.sort(order[:count]), np.sort(order[count:])


def _server_share(wanted: int, available: int, clients: bool) -> int:
    """Return the wanted size, or a quarter of the samples if clients would get less than half."""
    if not clients:
        return min(wanted, available)
    return wanted if 2 * wanted <= available else max(1, available // 4)
