"""K distributions made of real datasets: the recipes a scenario names, and the clusters they give."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from cdfl.data.dataset import Dataset, Half
from cdfl.data.rotate import quarter_turns

Load = Callable[[str], Dataset]  # reads a source by name


@dataclass(frozen=True, eq=False)
class Cluster:
    """One distribution: a view of a dataset, so that clusters which differ by right angles share its images."""

    name: str
    dataset: Dataset
    turns: int = 0  # right angles, counter-clockwise
    label_map: Tensor | None = None  # int64 (num_classes,): label y becomes label_map[y]

    def take(self, half: Half, index: Tensor) -> tuple[Tensor, Tensor]:
        """Give the images and labels at these positions of a published half."""
        images, labels = self.dataset.half(half)
        picked = labels[index]
        if self.label_map is not None:
            picked = self.label_map[picked]
        return quarter_turns(images[index], self.turns), picked

    def on(self, dataset: Dataset) -> "Cluster":
        """Give the same view of that dataset, for instance of its copy on another device."""
        label_map = None if self.label_map is None else self.label_map.to(dataset.train_labels.device)
        return replace(self, dataset=dataset, label_map=label_map)


class Clusters(Protocol):
    """A recipe: which clusters a scenario has, before any image is read."""

    @property
    def num_clusters(self) -> int:
        """How many there are."""
        ...

    def build(self, load: Load) -> list[Cluster]:
        """Read the sources and make the clusters."""
        ...


@dataclass(frozen=True)
class Rotations:
    """The paper's clusters: cluster i is the source turned by i * 360 / K degrees."""

    source: str
    num_clusters: int

    def build(self, load: Load) -> list[Cluster]:
        """Read the source and turn it."""
        base = load(self.source)
        return [
            Cluster(f"{i * 360 // self.num_clusters}°", base, i * 4 // self.num_clusters)
            for i in range(self.num_clusters)
        ]
