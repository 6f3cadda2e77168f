"""Find the run folders that a command was given."""

from collections.abc import Sequence
from pathlib import Path

import typer

from cdfl.cli.stores import check_no_store
from cdfl.run_folder import RunFolder
from cdfl.run_series import RunSeries, check_one_metric


def find_runs(places: Sequence[Path]) -> dict[str, RunFolder]:
    """Return the runs in some folders, by short names: a folder holds a run, or folders of runs.

    Says in one sentence what is wrong if a folder holds none.
    """
    found = [path for place in places for path in _runs_in(place)]
    found = list(dict.fromkeys(found))
    return {_label(path, found): RunFolder(path) for path in found}


def warn_of_cut_lines(runs: dict[str, RunFolder]) -> None:
    """Say which runs end in the middle of a line: their process was killed, or it writes just now."""
    for name, run in runs.items():
        if run.is_cut:
            typer.echo(f"cdfl: {name} ends in the middle of an event, which is left out; was the run killed?", err=True)


def read_runs(runs: dict[str, RunFolder]) -> list[RunSeries]:
    """Read runs that can be drawn together: they have uploads, and one metric."""
    warn_of_cut_lines(runs)
    read = [RunSeries.of(name, run.events()) for name, run in runs.items()]
    check_one_metric(read)
    return read


def one_run(folder: Path) -> RunFolder:
    """Return the run in a folder; say in one sentence what is wrong if there is none, or if there are several."""
    if not (folder / "events.jsonl").exists():
        several = _runs_in(folder, f"`cdfl export --store {folder}` takes it")
        raise ValueError(f"{folder} holds {len(several)} runs; name one of them, such as {several[0]}")
    return RunFolder(folder)


def _runs_in(folder: Path, store_hint: str = "") -> list[Path]:
    if (folder / "events.jsonl").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/events.jsonl"))
    if found:
        return found
    if not folder.exists():
        raise ValueError(f"there is no folder {folder}; expected one that `cdfl run` or `cdfl compare` made")
    check_no_store(folder, store_hint or f"`cdfl status {folder}` shows it")
    raise ValueError(f"{folder} holds no run; expected a folder with events.jsonl, or a folder of such folders")


def _label(path: Path, found: Sequence[Path]) -> str:
    """Return the folder's name, or its path if two have the same name."""
    return path.name if sum(other.name == path.name for other in found) == 1 else str(path)
