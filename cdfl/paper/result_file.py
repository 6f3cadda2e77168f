"""The file of a scenario's results: runs with all their settings, and in each its cells."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FILE = {"scenario", "runs"}
RUN = {
    "preset", "changes", "config", "device", "precision", "machine", "commit", "seconds", "together", "processes",
    "smoke", "cells",
}  # fmt: skip
CELL = {"algorithm", "seed", "end"}
REMEDY = "move it away, or take another folder"


def read_runs(path: Path) -> list[dict[str, Any]] | None:
    """The runs in a file; None if it holds the result of an experiment that is not made of cells."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); {REMEDY}") from None
    if isinstance(content, dict) and "experiment" in content:
        return None
    _expect(FILE, content, path)
    if content["scenario"] != path.stem:
        raise ValueError(
            f"{path} holds results of {content['scenario']}; name it {content['scenario']}.json, or {REMEDY}"
        )
    runs: list[dict[str, Any]] = content["runs"]
    for run in runs:
        _expect(RUN, run, path)
        for cell in run["cells"]:
            _expect(CELL, cell, path)
    return runs


def write_runs(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Write a file in one step: interrupted, the old one is still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_suffix(".json.new")
    begun.write_text(_text(path.stem, runs), encoding="utf-8")
    begun.replace(path)


def _expect(names: set[str], given: Any, path: Path) -> None:
    found = list(given) if isinstance(given, dict) else [type(given).__name__]
    if not names.issubset(found):
        lacking, some = ", ".join(sorted(names.difference(found))), ", ".join(found[:5])
        raise ValueError(f"{path} holds no results of this study: expected {lacking}, found {some}; {REMEDY}")


def _text(scenario: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """JSON with a line for each setting of a run and each cell: short enough to read, and to compare."""
    parts = []
    for run in runs:
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in run.items() if name != "cells"]
        cells = ",\n".join(f"   {json.dumps(cell, separators=(',', ':'))}" for cell in run["cells"])
        parts.append(" {\n" + ",\n".join(lines) + ',\n  "cells": [\n' + cells + "\n  ]\n }")
    return f'{{\n"scenario": {json.dumps(scenario)},\n"runs": [\n' + ",\n".join(parts) + "\n]\n}\n"
