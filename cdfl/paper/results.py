"""A folder of results: one JSON file a scenario, in it what was run together, and every cell of it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdfl.algorithms import ALGORITHMS
from cdfl.core import Hyperparams
from cdfl.core.hyperparams import BEFORE
from cdfl.paper.cells import Cell, resolve
from cdfl.paper.result_file import read_runs, write_runs
from cdfl.sim.run import RunConfig

EVERYTHING = frozenset(asdict(Hyperparams()))
NOT_THE_RESULT = ("algorithm", "seed", "device", "precision", "policy")  # named elsewhere, or without influence


@dataclass(frozen=True, eq=False)
class Kept:
    """A cell that was run: its digest (see `cdfl.paper.digest`), and what it was run with."""

    cell: Cell
    digest: Mapping[str, Any]
    record: Mapping[str, Any]  # preset, changes, config, machine, commit, seconds, together, smoke

    @property
    def end(self) -> Mapping[str, Any]:
        """The end of the run in numbers."""
        end: Mapping[str, Any] = self.digest["end"]
        return end

    def is_of(self, config: RunConfig) -> bool:
        """Whether it was run with these settings; a hyperparameter that did not exist then changed nothing."""
        return not self._differences(config)

    def changes_since(self) -> list[tuple[str, Any, Any]]:
        """The settings that its names stood for then and no longer do: (name, then, now)."""
        return self._differences(resolve(self.cell, "cpu", smoke=self.record["smoke"]))

    def _differences(self, config: RunConfig) -> list[tuple[str, Any, Any]]:
        told, asked = (dict(settings) for settings in (self.record["config"], stored(config)))
        then = asdict(Hyperparams()) | BEFORE | told.pop("hyperparams")
        now = asked.pop("hyperparams")
        names = sorted(then.keys() - _without_influence(config.algorithm))
        found = [(name, then[name], now.get(name)) for name in names if not _agrees(then[name], now.get(name))]
        return found + [
            (name, then, asked.get(name)) for name, then in told.items() if not _agrees(then, asked.get(name))
        ]


class Results:
    """What is in a folder, and a way to add to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(folder.glob("*.json")):
            runs = read_runs(path)
            if runs is not None:
                self._files[path.stem] = runs
        self._index()

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept.values())

    def find(self, cell: Cell) -> Kept | None:
        """What is known of a cell."""
        return self._kept.get(cell.key)

    def trials(
        self, scenario: str, preset: str, algorithm: str = "cdfl", changes: Mapping[str, Any] | None = None
    ) -> list[Kept]:
        """All seeds of a cell, in their order."""
        asked = Cell(scenario, preset, algorithm, changes=changes or {})
        return sorted(self._trials.get(asked.question, []), key=lambda kept: kept.cell.seed)

    def values(
        self,
        column: str,
        scenario: str,
        preset: str,
        algorithm: str = "cdfl",
        changes: Mapping[str, Any] | None = None,
    ) -> list[float]:
        """One number of the end of every trial."""
        found = [kept.end[column] for kept in self.trials(scenario, preset, algorithm, changes)]
        return [value for value in found if value is not None]

    def add(self, cells: Sequence[tuple[Cell, RunConfig, Mapping[str, Any]]], header: Mapping[str, Any]) -> None:
        """Keep cells that were run together, with what is true of all of them; older ones of the same name go."""
        self._drop([cell for cell, _, _ in cells])
        for cell, config, kept in cells:
            described = {"preset": cell.preset, "changes": dict(cell.changes), "config": stored(config), **header}
            runs = self._files[cell.scenario]
            same = [run for run in runs if {**run, "cells": None} == {**described, "cells": None}]
            if not same:
                runs.append({**described, "cells": []})
                same = runs[-1:]
            same[0]["cells"].append({"algorithm": cell.algorithm, "seed": cell.seed, **kept})
        for scenario in {cell.scenario for cell, _, _ in cells}:
            self._write(scenario)
        self._index()

    def take(self, other: "Results") -> None:
        """Keep everything from another folder, as from another machine; cells of the same name go."""
        self._drop([kept.cell for kept in other])
        for scenario, runs in other._files.items():
            self._files.setdefault(scenario, []).extend(runs)
            self._write(scenario)
        self._index()

    def _drop(self, cells: Sequence[Cell]) -> None:
        names = {cell.key for cell in cells}
        for scenario in {cell.scenario for cell in cells}:
            runs = self._files.setdefault(scenario, [])
            for run in runs:
                run["cells"] = [kept for kept in run["cells"] if _cell(scenario, run, kept).key not in names]
            runs[:] = [run for run in runs if run["cells"]]

    def _write(self, scenario: str) -> None:
        write_runs(self.folder / f"{scenario}.json", self._files[scenario])

    def _index(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._trials: dict[str, list[Kept]] = {}
        for scenario, runs in self._files.items():
            for run in runs:
                for kept in run["cells"]:
                    cell = _cell(scenario, run, kept)
                    self._kept[cell.key] = Kept(cell, kept, run)
                    self._trials.setdefault(cell.question, []).append(self._kept[cell.key])


def stored(config: RunConfig) -> dict[str, Any]:
    """The settings of a run that decide its result, as plain values, less what a cell names itself."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_json()))
    scenario = {name: value for name, value in values["scenario"].items() if name not in ("summary", "hyperparams")}
    return {name: value for name, value in values.items() if name not in NOT_THE_RESULT} | {"scenario": scenario}


def _without_influence(algorithm: str) -> frozenset[str]:
    """The hyperparameters that an algorithm does not look at."""
    kind = ALGORITHMS[algorithm]
    if kind.models_down == "none":  # there is no server
        return EVERYTHING - set(Hyperparams().training)
    return frozenset() if kind.uses_proxy else frozenset(Hyperparams().estimation)


def _cell(scenario: str, run: Mapping[str, Any], kept: Mapping[str, Any]) -> Cell:
    return Cell(scenario, run["preset"], kept["algorithm"], kept["seed"], run["changes"])


def _agrees(then: Any, now: Any) -> bool:
    """Whether everything that was told of then is the same now; what is newer does not count."""
    if isinstance(then, dict) and isinstance(now, dict):
        return all(name in now and _agrees(value, now[name]) for name, value in then.items())
    return bool(then == now)
