"""Split base images between server and clients. No image is in two of the four sets."""

from dataclasses import dataclass

import numpy as np

from cdfl.data.dataset import Dataset, Half
from cdfl.data.randomness import generator

HALF_OF: dict[str, Half] = {"pretraining": "train", "train": "train", "proxy": "test", "test": "test"}


@dataclass(frozen=True)
class Sizes:
    """Numbers of samples. The defaults are the paper's, except `test`, which it does not give."""

    low: int = 500  # fewest training samples of a client between two uploads
    high: int = 2000  # most
    test: int = 500  # test samples of the same mixture
    pretraining: int = 3000  # images of each cluster, from the train half
    proxy: int = 1000  # images of each cluster, from the test half

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}; expected 1 <= low <= high")
        for name in ("test", "pretraining", "proxy"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1 sample")


@dataclass(frozen=True, eq=False)
class Split:
    """Positions in a dataset's train half (`pretraining`, `train`) and test half (`proxy`, `test`)."""

    pretraining: np.ndarray
    train: np.ndarray
    proxy: np.ndarray
    test: np.ndarray
    notes: tuple[str, ...] = ()

    def part(self, name: str) -> np.ndarray:
        """Return one of the four sets by its name."""
        if name not in HALF_OF:
            raise ValueError(f"there is no split {name!r}; expected one of {', '.join(HALF_OF)}")
        found: np.ndarray = getattr(self, name)
        return found


def split_dataset(dataset: Dataset, sizes: Sizes, seed: int) -> Split:
    """Split at random, as a function of only the seed and the number of images.

    So all clusters of the same base images (rotations, shifts) have the same split, and no rotated or blurred copy of a
    training image is in a test set.
    """
    train, test = len(dataset.train_labels), len(dataset.test_labels)
    pretraining, proxy = _server_share(sizes.pretraining, train), _server_share(sizes.proxy, test)
    notes = tuple(
        f"{dataset.name}: {name} set of {got:,} images instead of {wanted:,}: the {half} half has only {available:,}"
        for name, got, wanted, half, available in (
            ("pretraining", pretraining, sizes.pretraining, "train", train),
            ("proxy", proxy, sizes.proxy, "test", test),
        )
        if got < wanted
    )
    train_order = generator(seed, "split train").permutation(train)
    test_order = generator(seed, "split test").permutation(test)
    return Split(
        np.sort(train_order[:pretraining]),
        np.sort(train_order[pretraining:]),
        np.sort(test_order[:proxy]),
        np.sort(test_order[proxy:]),
        notes,
    )


def _server_share(wanted: int, available: int) -> int:
    """Return the wanted size, or a quarter of the images if clients would get less than half."""
    return wanted if 2 * wanted <= available else max(1, available // 4)
