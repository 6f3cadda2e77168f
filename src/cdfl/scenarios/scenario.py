"""The definition of an experiment; a run adds an algorithm and a seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from torch.nn.functional import cross_entropy

from cdfl.core import Loss
from cdfl.data import Clusters, Drift, Federation, PaperDrift, Sizes, load_source
from cdfl.jsonable import jsonable
from cdfl.metrics import ACCURACY, Metric
from cdfl.models import MODELS, MakeModel

NAME = re.compile(r"(?!\.{1,2}\Z)[^/\\:\x00-\x1f\x7f]+")  # one valid part of a path


@dataclass(frozen=True)
class Scenario:
    """The clusters, the drift, the model, and the numbers of clients and uploads."""

    name: str  # also of its run folders and pictures
    summary: str
    clusters: Clusters
    model: str | MakeModel  # a name of cdfl.models, or a function
    num_clients: int
    num_uploads: int  # of all clients together
    drift: Drift = field(default_factory=PaperDrift)
    sizes: Sizes = field(default_factory=Sizes)
    paper_row: str | None = None  # for the preset `paper`: a key of the paper's parameter table
    settings: Mapping[str, object] = field(default_factory=dict)  # overrides of the default preset
    loss: Loss = cross_entropy  # of a batch: (outputs, targets) -> one number
    metrics: tuple[Metric, ...] = (ACCURACY,)  # the first is the main one

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ValueError(
                f"a scenario has the name {self.name!r}, but files and folders are named after it; set "
                'name = "..." to words without / \\ : and control characters, not . or ..'
            )
        if not callable(self.model) and self.model not in MODELS:
            raise ValueError(
                f"{self.name}: there is no model {self.model!r}; expected one of {', '.join(MODELS)}, or in Python a "
                "function (input_shape, num_classes) -> nn.Module"
            )
        if isinstance(self.drift, type) or not callable(getattr(self.drift, "counts", None)):
            raise ValueError(
                f"{self.name}: drift is {self.drift!r}; expected an object with "
                "counts(seed, client, update, size, num_clusters)"
            )
        if self.num_clients < 1 or self.num_uploads < 1:
            raise ValueError(
                f"{self.name}: {self.num_clients} clients and {self.num_uploads} uploads; expected at least 1 of each"
            )

    @property
    def num_clusters(self) -> int:
        """K."""
        return self.clusters.num_clusters

    @property
    def sources(self) -> list[str]:
        """The datasets that it reads."""
        given = getattr(self.clusters, "sources", None) or (getattr(self.clusters, "source", ""),)
        return [name for source in given for name in source.split("+") if name]

    def federation(self, seed: int = 0, data_dir: Path | str | None = None, *, validation: bool = False) -> Federation:
        """Read the data and split them between server and clients."""
        clusters = self.clusters.build(lambda source: load_source(source, data_dir))
        return Federation(clusters, self.drift, self.sizes, seed, validation=validation)

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain values, to be stored with a run."""
        return {field.name: jsonable(getattr(self, field.name)) for field in fields(self)}
