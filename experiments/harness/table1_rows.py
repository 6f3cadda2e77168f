"""The 13 rows of the paper's Table 1: the scenario that is run for each, and the figures that the paper prints."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from experiments.harness.run_keys import RunKey

FOLDER = Path(__file__).resolve().parent.parent  # experiments/
COLUMNS = ("before", "after", "cluster")


class Figure(NamedTuple):
    """A published mean and its standard deviation over five trials."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Row:
    """One row: its name in the paper, and the scenario that is run for it."""

    printed: str  # its name in the paper
    key: str  # in experiments/published.json
    scenario: str
    stand_in: str | None = None  # the data that replace the paper's; None: the paper's own data

    @property
    def title(self) -> str:
        """The name of the data that were used; † marks a stand-in."""
        return self.printed if self.stand_in is None else f"{self.stand_in} †"

    def published(self, algorithm: str, column: str) -> Figure | None:
        """Return the printed figure, if there is one; for Local, before and after are one figure."""
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
# The paper's own data where our rows use stand-ins; run on request.
FULL_ROWS = tuple(Row(row.printed, row.key, row.key) for row in EVERY_ROW if row.key != row.scenario)


def row_keys(algorithms: Mapping[str, Sequence[str]], trials: int, rows: Iterable[Row] = EVERY_ROW) -> list[RunKey]:
    """Return the runs of rows: the algorithms of each preset, with a seed for each trial."""
    return [
        RunKey(row.scenario, preset, algorithm, seed)
        for row in rows
        for preset, names in algorithms.items()
        for algorithm in names
        for seed in range(trials)
    ]


@cache
def _published() -> dict[str, dict[str, dict[str, list[float]]]]:
    path = FOLDER / "published.json"
    rows: dict[str, dict[str, dict[str, list[float]]]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows
