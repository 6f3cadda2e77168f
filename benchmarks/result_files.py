"""Result files of benchmarks, and the machine that they name."""

import json
from pathlib import Path
from typing import Any

from experiments.harness.machine import commit, machine

__all__ = ["RESULTS", "ROOT", "commit", "machine", "read", "write"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def read(name: str, default: Any = None) -> Any:
    """Read `benchmarks/results/NAME.json`; return `default` if it does not exist."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else default


def write(name: str, content: Any, folder: Path = RESULTS) -> None:
    """Write NAME.json to benchmarks/results, or to another folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
