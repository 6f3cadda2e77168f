"""Clusters: views of datasets, and recipes that make K of them.

A recipe names a source, which is the name of a published dataset or the path of a user's own: an `.npz` file or a
folder of class folders (see `cdfl.data.sources`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from numbers import Integral
from typing import Any, Protocol

import torch
from torch import Tensor

from cdfl.data.dataset import Dataset, Half
from cdfl.data.errors import DataError
from cdfl.data.label_numbering import one_numbering
from cdfl.data.randomness import generator
from cdfl.data.transforms import quarter_turns, reshape, rotate, shift

Load = Callable[[str], Any]  # reads a source: a Dataset of images, or what another recipe needs


@dataclass(frozen=True, eq=False)
class Cluster:
    """One distribution (P_k), as a view of a dataset: clusters that differ by right angles share its images."""

    name: str
    dataset: Dataset
    turns: int = 0  # right angles, counter-clockwise
    label_map: Tensor | None = None  # int64 (num_classes,): label y becomes label_map[y]

    def take(self, half: Half, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets at these positions of a half."""
        inputs, targets = self.dataset.half(half)
        picked = targets[index]
        if self.label_map is not None:
            picked = self.label_map[picked]
        return quarter_turns(inputs.index_select(0, index), self.turns), picked  # half the time of inputs[index]

    def on(self, dataset: Dataset) -> Cluster:
        """Return the same view of another dataset, e.g. of its copy on a GPU."""
        label_map = None if self.label_map is None else self.label_map.to(dataset.device)
        return replace(self, dataset=dataset, label_map=label_map)


class Clusters(Protocol):
    """A recipe: how many clusters, and how to make them."""

    @property
    def num_clusters(self) -> int:
        """The number of clusters that it makes."""
        ...

    def build(self, load: Load) -> list[Cluster]:
        """Read the sources and make the clusters."""
        ...


@dataclass(frozen=True)
class Rotations:
    """The paper's clusters: cluster i is the source rotated by i * 360 / K degrees.

    Angles that differ by a right angle share one copy of the images, so K = 6 holds three copies.
    With `shape` (C, H, W), images are fitted to it before they are rotated.
    """

    source: str
    num_clusters: int
    shape: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        _at_least_one(self.num_clusters)
        _check_shape(self.shape)

    def build(self, load: Load) -> list[Cluster]:
        """Read the source, and rotate it by each angle that is not a right one."""
        base = _fit(_images(load(self.source)), self.shape)
        if self.num_clusters > 1 and base.input_shape[1] != base.input_shape[2]:
            raise DataError(f"{base.name}: rotation needs square images, got {base.input_shape} (C, H, W); crop them")
        bases: dict[Fraction, Dataset] = {Fraction(0): base}
        clusters = []
        for i in range(self.num_clusters):
            degrees = Fraction(360 * i, self.num_clusters)
            turns, rest = divmod(degrees, 90)
            if rest not in bases:
                bases[rest] = _change(base, partial(rotate, degrees=float(rest)))
            clusters.append(Cluster(f"{float(degrees):g}°", bases[rest], turns))
        return clusters


@dataclass(frozen=True)
class Domains:
    """One cluster for each source; "mnist+usps" joins two. With `shape` (C, H, W), images are fitted to it.

    A class with the same name in several sources is the same class.
    """

    sources: tuple[str, ...]
    shape: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        _at_least_one(len(self.sources))
        _check_shape(self.shape)

    @property
    def num_clusters(self) -> int:
        """One for each source."""
        return len(self.sources)

    def build(self, load: Load) -> list[Cluster]:
        """Read every source, fit it to the shape, and join sources that share a cluster."""
        parts = [source.split("+") for source in self.sources]
        datasets = iter(one_numbering([_fit(_images(load(name)), self.shape) for names in parts for name in names]))
        return [
            Cluster(source, join(source, list(islice(datasets, len(names)))))
            for source, names in zip(self.sources, parts, strict=True)
        ]


@dataclass(frozen=True)
class Datasets:
    """One cluster for each dataset in memory."""

    datasets: tuple[Dataset, ...]

    def __post_init__(self) -> None:
        _at_least_one(len(self.datasets))

    @property
    def num_clusters(self) -> int:
        """One for each dataset."""
        return len(self.datasets)

    def build(self, load: Load) -> list[Cluster]:
        """Make the clusters; nothing is read."""
        return [Cluster(dataset.name, dataset) for dataset in one_numbering(list(self.datasets))]


@dataclass(frozen=True)
class LabelPermutations:
    """The same images with other labels: cluster 0 keeps them, each other cluster permutes them at random."""

    source: str
    num_clusters: int
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least_one(self.num_clusters)

    def build(self, load: Load) -> list[Cluster]:
        """Read the source and draw the permutations."""
        base = _images(load(self.source))
        if base.num_classes is None:
            raise DataError(f"{base.name} has no classes; labels can be permuted only where targets are classes")
        clusters = [Cluster("labels 0", base)]
        for i in range(1, self.num_clusters):
            permuted = generator(self.seed, "labels", i).permutation(base.num_classes)
            clusters.append(Cluster(f"labels {i}", base, label_map=torch.from_numpy(permuted)))
        return clusters


@dataclass(frozen=True)
class Shifts:
    """The same images in other quality: one cluster for each of "none", "brightness FACTOR", "blur SIGMA"."""

    source: str
    shifts: tuple[str, ...] = ("none", "brightness 0.4", "brightness 1.8", "blur 1.5")

    def __post_init__(self) -> None:
        _at_least_one(len(self.shifts))

    @property
    def num_clusters(self) -> int:
        """One for each shift."""
        return len(self.shifts)

    def build(self, load: Load) -> list[Cluster]:
        """Read the source and apply each shift."""
        base = _images(load(self.source))
        return [
            Cluster(name, base if name == "none" else _change(base, partial(shift, description=name)))
            for name in self.shifts
        ]


def join(name: str, datasets: list[Dataset]) -> Dataset:
    """Join datasets whose images have the same shape."""
    if len(datasets) == 1:
        return datasets[0]
    shapes = [dataset.input_shape for dataset in datasets]
    if len(set(shapes)) > 1:
        raise DataError(f"{name} joins images of different sizes {shapes} (C, H, W); give the recipe a shape")
    return Dataset(
        name,
        torch.cat([dataset.train_inputs for dataset in datasets]),
        torch.cat([dataset.train_targets for dataset in datasets]),
        torch.cat([dataset.test_inputs for dataset in datasets]),
        torch.cat([dataset.test_targets for dataset in datasets]),
        max(dataset.num_classes or 0 for dataset in datasets) or None,
        next((dataset.class_names for dataset in datasets if dataset.class_names), ()),
        tuple(note for dataset in datasets for note in dataset.notes),
    )


def _fit(dataset: Dataset, shape: tuple[int, int, int] | None) -> Dataset:
    return dataset if shape is None else _change(_images(dataset), partial(reshape, shape=shape))


def _images(found: Any) -> Dataset:
    if not isinstance(found, Dataset) or not found.is_image:
        what = found.name if isinstance(found, Dataset) else "the source"
        raise DataError(f"{what} does not hold images; expected a dataset of images, uint8 (N, C, H, W)")
    return found


def _change(dataset: Dataset, change: Callable[[Tensor], Tensor]) -> Dataset:
    return replace(
        dataset,
        train_inputs=change(dataset.train_inputs),
        test_inputs=change(dataset.test_inputs),
    )


def _at_least_one(num_clusters: int) -> None:
    if num_clusters < 1:
        raise ValueError(f"{num_clusters} clusters; expected at least 1")


def _check_shape(shape: tuple[int, int, int] | None) -> None:
    if shape is None:
        return
    if len(shape) != 3 or not all(isinstance(side, Integral) and side >= 1 for side in shape):
        raise ValueError(f"shape is {shape!r}; expected channels, height and width, whole numbers of at least 1")
