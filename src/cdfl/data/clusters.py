"""One distribution: a view of a dataset. The recipes that make K of them are in `cdfl.data.recipes`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from cdfl.data.dataset import Dataset, Half
from cdfl.data.rotate import quarter_turns


@dataclass(frozen=True, eq=False)
class Cluster:
    """One distribution (P_k): a view of a dataset, so that clusters which differ by right angles share its images."""

    name: str
    dataset: Dataset
    turns: int = 0  # right angles, counter-clockwise
    label_map: Tensor | None = None  # int64 (num_classes,): label y becomes label_map[y]

    def take(self, half: Half, index: Tensor) -> tuple[Tensor, Tensor]:
        """The images and labels at these positions of a published half."""
        images, labels = self.dataset.half(half)
        picked = labels[index]
        if self.label_map is not None:
            picked = self.label_map[picked]
        return quarter_turns(images.index_select(0, index), self.turns), picked  # half the time of images[index]

    def on(self, dataset: Dataset) -> Cluster:
        """The same view of that dataset, for instance of its copy on another device."""
        label_map = None if self.label_map is None else self.label_map.to(dataset.train_labels.device)
        return replace(self, dataset=dataset, label_map=label_map)
