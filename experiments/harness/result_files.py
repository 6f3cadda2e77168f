"""Read and write result files: the runs of a scenario with their settings, or what an experiment measured."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

FILE = {"scenario", "runs"}
MEASURED = {"experiment", "settings"}
RUN = {
    "preset", "changes", "config", "device", "precision", "machine", "commit", "seconds", "together", "processes",
    "smoke", "cells",
}  # fmt: skip
CELL = {"algorithm", "seed", "end"}
REMEDY = "move it away, or name another folder"


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a file: `runs`, or `experiment` and what it measured; refuse anything else."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {REMEDY}") from None
    is_measured = isinstance(content, dict) and "experiment" in content
    _expect(MEASURED if is_measured else FILE, content, path)
    name = content["experiment" if is_measured else "scenario"]
    if name != path.stem:
        raise ValueError(f"{path} holds results of {name}; name it {name}.json, or {REMEDY}")
    for run in content.get("runs", []):
        _expect(RUN, run, path)
        if "config" in content:
            run["config"] = with_differences(content["config"], run["config"])
        for cell in run["cells"]:
            _expect(CELL, cell, path)
    return content


def write_runs(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Write the file of a scenario."""
    _write(path, _text(path.stem, runs))


def write_measured(path: Path, content: Mapping[str, Any]) -> None:
    """Write the file of an experiment without run keys."""
    _write(path, json.dumps(content, indent=1) + "\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder exclusively; a system without `fcntl` has no lock."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ModuleNotFoundError:
        yield
        return
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # releases the lock


def _write(path: Path, text: str) -> None:
    """Replace the file in one step: an interruption leaves the old one."""
    begun = path.with_suffix(".json.new")
    begun.write_text(text, encoding="utf-8")
    begun.replace(path)


def _expect(names: set[str], given: Any, path: Path) -> None:
    found = list(given) if isinstance(given, dict) else [type(given).__name__]
    if not names.issubset(found):
        lacking, some = ", ".join(sorted(names.difference(found))), ", ".join(found[:5])
        raise ValueError(f"{path} holds no results of an experiment: expected {lacking}, found {some}; {REMEDY}")


def differences(base: Any, other: Any, path: str = "") -> dict[str, Any]:
    """Return the values of nested settings that differ from a base, by their path.

    >>> differences({"rates": {"a": 1, "b": 2}, "seed": 0}, {"rates": {"a": 1, "b": 3}, "seed": 0})
    {'rates.b': 3}
    """
    if isinstance(base, dict) and isinstance(other, dict) and base.keys() == other.keys():
        parts = (differences(base[name], other[name], f"{path}.{name}" if path else name) for name in base)
        return {name: value for part in parts for name, value in part.items()}
    return {} if base == other else {path: other}


def with_differences(base: Any, changes: Mapping[str, Any]) -> Any:
    """Return nested settings with the values at some paths replaced.

    >>> with_differences({"rates": {"a": 1, "b": 2}, "seed": 0}, {"rates.b": 3})
    {'rates': {'a': 1, 'b': 3}, 'seed': 0}
    """
    if "" in changes:
        return changes[""]
    found = deepcopy(base)
    for path, value in changes.items():
        *outer, name = path.split(".")
        place = found
        for part in outer:
            place = place[part]
        place[name] = value
    return found


def _text(scenario: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Return JSON with a line for each setting and each run, easy to read and to compare.

    The file holds the settings of its first run; every run holds how its own differ.
    """
    parts, base = [], runs[0]["config"] if runs else {}
    for run in runs:
        run = {**run, "config": differences(base, run["config"])}
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in run.items() if name != "cells"]
        cells = ",\n".join(f"   {json.dumps(cell, separators=(',', ':'))}" for cell in run["cells"])
        parts.append(" {\n" + ",\n".join(lines) + ',\n  "cells": [\n' + cells + "\n  ]\n }")
    head = f'{{\n"scenario": {json.dumps(scenario)},\n"config": {json.dumps(base)},\n"runs": [\n'
    return head + ",\n".join(parts) + "\n]\n}\n"
