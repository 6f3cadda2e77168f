"""The folder of a run: its config, the versions it ran with, and its events."""

import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from cdfl.run_events import Event, from_json, to_json


class RunFolder:
    """A folder that holds one run: `config.json`, `versions.json`, `events.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "RunFolder":
        """Create a run folder; refuse one that holds a run or a folder of runs."""
        if (path / "events.jsonl").exists() or any(path.glob("*/events.jsonl")):
            raise FileExistsError(f"{path} already holds a run; name another folder with --out, or delete it")
        path.mkdir(parents=True, exist_ok=True)
        _write_json(path / "config.json", config)
        _write_json(path / "versions.json", versions())
        return cls(path)

    def config(self) -> dict[str, Any]:
        """Read the resolved config."""
        file = self.path / "config.json"
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} cannot be read ({error}); restore it, or name another folder") from error
        return values

    @contextmanager
    def writer(self, earlier: Iterable[Event] = ()) -> Iterator[Callable[[Event], None]]:
        """Open the events file for writing; it starts with the `earlier` events of a resumed run."""
        begun = self.path / "events.jsonl.new"
        begun.write_text("".join(to_json(event) + "\n" for event in earlier), encoding="utf-8")
        begun.replace(self.path / "events.jsonl")  # atomic: an interruption here loses no events
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:

            def write(event: Event) -> None:
                file.write(to_json(event) + "\n")
                file.flush()

            yield write

    @property
    def is_cut(self) -> bool:
        """Whether the events end in the middle of a line: the run was killed, or it writes just now."""
        file = self.path / "events.jsonl"
        if not file.exists() or file.stat().st_size == 0:
            return False
        with file.open("rb") as opened:
            opened.seek(-1, 2)
            return opened.read(1) != b"\n"

    def check(self) -> None:
        """Raise ValueError if the first line is not an event; a run that begins just now has none."""
        with (self.path / "events.jsonl").open(encoding="utf-8", errors="replace") as opened:
            line = opened.readline()
        if line.endswith("\n"):
            self._read(line[:-1], 1)

    def events(self) -> list[Event]:
        """Read all events of the run so far; ignore a last line that was cut off."""
        file = self.path / "events.jsonl"
        lines = file.read_text(encoding="utf-8").split("\n") if file.exists() else [""]
        return [self._read(line, number) for number, line in enumerate(lines[:-1], start=1)]

    def _read(self, line: str, number: int) -> Event:
        try:
            return from_json(line)
        except ValueError as error:
            raise ValueError(f"{self.path / 'events.jsonl'}, line {number}: {error}") from None


def versions() -> dict[str, str]:
    """Return the versions and the kind of machine of this run, without names or paths."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    found["threads"] = str(torch.get_num_threads())  # another number changes the order of sums
    for package in ("cdfl", "torch", "numpy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, default=str) + "\n", encoding="utf-8")
