"""A folder of results: a JSON file for each scenario, and one for each experiment without run keys.

Trials on validation samples are in files of their own.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdfl import algorithms
from cdfl.core import Settings
from cdfl.sim.runner import RunConfig
from experiments.harness.fedbuff_int8 import known
from experiments.harness.result_files import locked, read_file, write_measured, write_runs
from experiments.harness.run_keys import RunKey, resolve

TRIALS = "-tuning"  # ends the name of a file with trials on validation samples
KINDS = {True: "smoke runs", False: "results of full runs"}
NOT_THE_RESULT = (
    "algorithm",
    "seed",
    "device",
    "precision",
    "policy",
    "validation",
)  # stored elsewhere, or without influence


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A stored run: its summary (see `experiments.harness.run_summary`) and the settings it ran with."""

    key: RunKey
    summary: Mapping[str, Any]
    record: Mapping[str, Any]  # preset, changes, config, machine, commit, seconds, together, smoke

    @property
    def end(self) -> Mapping[str, Any]:
        """The final numbers of the run."""
        end: Mapping[str, Any] = self.summary["end"]
        return end

    def is_of(self, config: RunConfig) -> bool:
        """Return whether the run had these settings."""
        return not self._differences(config)

    def changes_since(self) -> list[tuple[str, Any, Any]]:
        """Return the settings that differ from those that its key has today: (name, then, now)."""
        return self._differences(resolve(self.key, "cpu", smoke=self.record["smoke"]))

    def _differences(self, config: RunConfig) -> list[tuple[str, Any, Any]]:
        then, now = (_relevant(values, config.algorithm) for values in (self.record["config"], stored(config)))
        return [(name, then[name], now[name]) for name in then if then[name] != now[name]]


class Results:
    """What is in a folder, and a way to add to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read()

    def __iter__(self) -> Iterator[StoredRun]:
        return iter(self._kept.values())

    def find(self, key: RunKey) -> StoredRun | None:
        """Return the stored run, if there is one."""
        return self._kept.get(key.name)

    def trials(
        self, scenario: str, preset: str, algorithm: str = "cdfl", changes: Mapping[str, Any] | None = None
    ) -> list[StoredRun]:
        """Return the trials of a run, in order of their seeds."""
        asked = RunKey(scenario, preset, algorithm, changes=changes or {})
        return sorted(self._trials.get(asked.without_seed, []), key=lambda kept: kept.key.seed)

    def values(
        self,
        column: str,
        scenario: str,
        preset: str,
        algorithm: str = "cdfl",
        changes: Mapping[str, Any] | None = None,
    ) -> list[float]:
        """Return one final number of every trial."""
        found = [kept.end[column] for kept in self.trials(scenario, preset, algorithm, changes)]
        return [value for value in found if value is not None]

    def measured(self, experiment: str) -> Mapping[str, Any] | None:
        """Return what an experiment without run keys measured."""
        return self._measured.get(experiment)

    @property
    def smoke(self) -> bool:
        """Whether these are smoke runs."""
        return bool(self._named(smoke=True))

    def expect(self, *, smoke: bool) -> None:
        """Refuse to mix smoke runs with results of full runs."""
        others = self._named(smoke=not smoke)
        if others:
            shown = f"{', '.join(others[:3])}{', ...' if len(others) > 3 else ''}"
            there = f"{self.folder} holds {KINDS[not smoke]} ({shown})"
            raise ValueError(f"{there}; {KINDS[smoke]} need another folder: name one with --out")

    def add(self, runs: Sequence[tuple[RunKey, RunConfig, Mapping[str, Any]]], header: Mapping[str, Any]) -> None:
        """Store runs of one group, with the header they share; they replace older ones of the same name."""
        with self._changed(smoke=header["smoke"]):
            self._drop([key for key, _, _ in runs])
            for key, config, summary in runs:
                described = {"preset": key.preset, "changes": dict(key.changes), "config": stored(config), **header}
                stored_runs = self._files[_file_of(key)]
                same = [run for run in stored_runs if {**run, "cells": None} == {**described, "cells": None}]
                if not same:
                    stored_runs.append({**described, "cells": []})
                    same = stored_runs[-1:]
                same[0]["cells"].append({"algorithm": key.algorithm, "seed": key.seed, **summary})
            for name in {_file_of(key) for key, _, _ in runs}:
                self._write(name)

    def add_measured(self, experiment: str, settings: Mapping[str, Any], **parts: Mapping[str, Any]) -> None:
        """Store what an experiment measured, by part; they replace parts of the same name and of other settings."""
        with self._changed(smoke=settings["smoke"]):
            self._add_measured({"experiment": experiment, "settings": settings, **parts})

    def take(self, other: "Results") -> None:
        """Copy everything from another folder; it replaces what has the same name here."""
        with self._changed(smoke=other.smoke):
            self._drop([kept.key for kept in other])
            for file, runs in other._files.items():
                for run in runs:
                    key = RunKey(_scenario_of(file), run["preset"], changes=run["changes"])
                    self._files.setdefault(_file_of(key), []).append(run)
            for name in {_file_of(kept.key) for kept in other}:
                self._write(name)
            for content in other._measured.values():
                self._add_measured(content)

    @contextmanager
    def _changed(self, *, smoke: bool) -> Iterator[None]:
        """Lock the folder and read it again, since another command may have added to it."""
        with locked(self.folder):
            self._read()
            self.expect(smoke=smoke)
            yield
        self._index()

    def _add_measured(self, content: Mapping[str, Any]) -> None:
        name, there = content["experiment"], self._measured.get(content["experiment"], {})
        if there.get("settings") == content["settings"]:
            parts = {part: {**there.get(part, {}), **own} for part, own in content.items() if isinstance(own, Mapping)}
            content = {**content, **parts}
        self._measured[name] = content
        write_measured(self.folder / f"{name}.json", content)

    def _drop(self, keys: Sequence[RunKey]) -> None:
        names = {key.name for key in keys}
        for file in {_file_of(key) for key in keys}:
            runs = self._files.setdefault(file, [])
            for run in runs:
                run["cells"] = [kept for kept in run["cells"] if _run_key(file, run, kept).name not in names]
            runs[:] = [run for run in runs if run["cells"]]

    def _write(self, name: str) -> None:
        write_runs(self.folder / f"{name}.json", self._files[name])

    def _read(self) -> None:
        self._files: dict[str, list[dict[str, Any]]] = {}
        self._measured: dict[str, Mapping[str, Any]] = {}
        for path in sorted(self.folder.glob("*.json")):
            content = read_file(path)
            if "experiment" in content:
                self._measured[path.stem] = content
            else:
                self._files[path.stem] = content["runs"]
        self._index()

    def _named(self, *, smoke: bool) -> list[str]:
        """Return the files that hold smoke runs, or those that hold other results."""
        runs = [name for name, runs in self._files.items() if any(run["smoke"] is smoke for run in runs)]
        others = [name for name, one in self._measured.items() if one["settings"]["smoke"] is smoke]
        return [f"{name}.json" for name in (*runs, *others)]

    def _index(self) -> None:
        self._kept: dict[str, StoredRun] = {}
        self._trials: dict[str, list[StoredRun]] = {}
        for name, runs in self._files.items():
            for run in runs:
                for kept in run["cells"]:
                    key = _run_key(name, run, kept)
                    self._kept[key.name] = StoredRun(key, kept, run)
                    self._trials.setdefault(key.without_seed, []).append(self._kept[key.name])


def stored(config: RunConfig) -> dict[str, Any]:
    """Return the settings that decide the result of a run, as JSON values, without what its key names."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_json()))
    # The study has one loss and one metric.
    without = ("summary", "settings", "loss", "metrics", "policy")
    scenario = {name: value for name, value in values["scenario"].items() if name not in without}
    return {name: value for name, value in values.items() if name not in NOT_THE_RESULT} | {"scenario": scenario}


def _relevant(config: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Return the stored settings that an algorithm uses, by name."""
    kind = algorithms.ALGORITHMS[known(algorithm)]
    settings = kind(Settings.from_dict(config["settings"])).settings  # some algorithms fix a setting themselves
    training = {**vars(settings.training), **vars(settings.pretraining)}
    if kind.models_down == "none":  # there is no server
        used = training
    elif kind.uses_proxy:
        used = settings.leaves()
    else:
        used = {**vars(settings.rates), **training, "guard": settings.guard}
    scenario = {name: value for name, value in config["scenario"].items() if value is not None}  # fields come later
    return {name: value for name, value in config.items() if name != "settings"} | used | {"scenario": scenario}


def _file_of(key: RunKey) -> str:
    """Return the name of the file that holds a run: that of its scenario, or of the trials on validation samples."""
    return key.scenario + (TRIALS if key.changes.get("validation") else "")


def _scenario_of(file: str) -> str:
    return file.removesuffix(TRIALS)


def _run_key(file: str, run: Mapping[str, Any], kept: Mapping[str, Any]) -> RunKey:
    return RunKey(_scenario_of(file), run["preset"], kept["algorithm"], kept["seed"], run["changes"])
