"""`cdfl plot`: plot a run folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cdfl.cli.options import exit_on
from cdfl.record import RunFolder
from cdfl.report import plot_run


def plot(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of `cdfl compare`.")],
    out: Annotated[Path, typer.Option(help="File to write: .png, .svg, .pdf or another format of matplotlib.")] = Path(
        "run.png"
    ),
    against: Annotated[
        list[Path] | None, typer.Option(help="Another run, or folder of runs, to compare with; repeatable.")
    ] = None,
) -> None:
    """Plot a run: scores before and after the reply, and one client's true and estimated mixtures.

    In a folder of `cdfl compare`, the first run is plotted and the others are compared with it.
    """
    with exit_on(ValueError, OSError):
        first, *others = [path for folder in (run, *(against or [])) for path in runs_in(folder)]
        rivals = {_label(path, others): RunFolder(path).events() for path in others}
        plot_run(RunFolder(first).events(), out, rivals)
    typer.echo(f"wrote {out}")


def runs_in(folder: Path) -> list[Path]:
    """Return the folder itself if it holds a run, else the run folders in it."""
    if (folder / "events.jsonl").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/events.jsonl"))
    if not found:
        raise ValueError(f"{folder} holds no run; expected a folder with events.jsonl, or a folder of such folders")
    return found


def _label(path: Path, others: Sequence[Path]) -> str:
    """Return the folder's name, or its path if two have the same name."""
    return path.name if sum(other.name == path.name for other in others) == 1 else str(path)
