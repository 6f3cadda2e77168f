"""The rows of the paper's Table 1, 13 of them: what is run for each, and the figures the paper prints."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from cdfl.paper.cells import Cell
from cdfl.paper.folder import experiments_folder

COLUMNS = ("before", "after", "cluster")
LOCAL = "local-restart"  # our reading of the paper's Local: a client trains anew on what it has, and nothing else


class Figure(NamedTuple):
    """A published mean and its standard deviation over five trials."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Row:
    """One row: its name in the paper, and the scenario that is run for it."""

    printed: str  # as in the paper
    key: str  # of experiments/published.json
    scenario: str
    stand_in: str | None = None  # what the data are instead of the paper's; None: they are the paper's

    @property
    def title(self) -> str:
        """What a table calls it: the data that were used, never those that stand behind them."""
        return self.printed if self.stand_in is None else f"{self.stand_in} †"

    def published(self, algorithm: str, column: str) -> Figure | None:
        """The printed figure, if there is one; Local has one accuracy only, before and after are the same."""
        figures = _published()[self.key].get(algorithm, {})
        found = figures.get(column) or (figures.get("client") if column != "cluster" else None)
        return None if found is None else Figure(*found)


def _rows() -> list[Row]:
    rows = [Row(f"FashionMNIST ({k})", f"fashion-mnist-{k}", f"fashion-mnist-{k}") for k in (2, 3, 4, 6)]
    rows += [Row(f"CIFAR-100 ({k})", f"cifar-100-{k}", f"cifar-10-{k}", f"CIFAR-10 ({k})") for k in (2, 3, 4, 6)]
    rows += [
        Row(f"MiniImagenet ({k})", f"mini-imagenet-{k}", f"mini-imagenet-32px-{k}", f"MiniImageNet 32x32 ({k})")
        for k in (2, 3, 4, 6)
    ]
    rows.append(Row("DigitRecognition", "digit-recognition", "digit-recognition", "digits with fewer plates"))
    return rows


EVERY_ROW: tuple[Row, ...] = tuple(_rows())
# The paper's own data, for whoever has what our rows stand in for.
FULL_ROWS = tuple(Row(row.printed, row.key, row.key) for row in EVERY_ROW if row.key != row.scenario)
STAND_INS = {  # what they are, by how the names of scenarios begin
    "cifar-10-": "CIFAR-10 (10 classes) for CIFAR-100",
    "mini-imagenet-": "25,000 of the 60,000 images of MiniImageNet-100 at 32x32 instead of 84x84",
    "digit-recognition": "SVHN cropped anew and 3,421 instead of 100,000 plate digits",
}
FEWER_CLIENTS = (
    "CIFAR-10 and MiniImageNet have 5 clients a cluster instead of 20, who upload 20 times each as the paper's do. "
)


def footnote(rows: Iterable[Row]) -> list[str]:
    """What those stand-ins are that a table has, if it has any."""
    there = [row.scenario for row in rows if row.stand_in]
    notes = {start: note for start, note in STAND_INS.items() if any(name.startswith(start) for name in there)}
    if not notes:
        return []
    fewer = FEWER_CLIENTS if notes.keys() - {"digit-recognition"} else ""
    told = f"† stands in for data that are not at hand: {'; '.join(notes.values())}. {fewer}"
    return [f"{told}Its figures are not the paper's to compare with.\n"]


def row_cells(algorithms: Mapping[str, Sequence[str]], trials: int, rows: Iterable[Row] = EVERY_ROW) -> list[Cell]:
    """The cells of rows: `algorithms` of each preset, as many seeds as trials."""
    return [
        Cell(row.scenario, preset, algorithm, seed)
        for row in rows
        for preset, names in algorithms.items()
        for algorithm in names
        for seed in range(trials)
    ]


@cache
def _published() -> dict[str, dict[str, dict[str, list[float]]]]:
    path = experiments_folder() / "published.json"
    rows: dict[str, dict[str, dict[str, list[float]]]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows
