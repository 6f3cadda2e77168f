"""`cdfl plot`: a run folder as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cdfl.cli.options import refuse
from cdfl.record import RunFolder
from cdfl.report import picture


def plot(
    run: Annotated[Path, typer.Argument(help="A folder that `cdfl run` or `cdfl compare` has filled.")],
    out: Annotated[Path, typer.Option(help="The picture: .png, .svg, .pdf or another that matplotlib writes.")] = Path(
        "run.png"
    ),
    against: Annotated[
        list[Path] | None, typer.Option(help="Another run, or folder of runs, to compare with; may be repeated.")
    ] = None,
) -> None:
    """Draw a run: accuracy before and after the reply, and one client's true and estimated mixtures.

    Of what `cdfl compare` has filled, the first run is drawn like this and the others beside it.
    """
    with refuse(ValueError, OSError):
        first, *others = [path for folder in (run, *(against or [])) for path in runs_in(folder)]
        rivals = {_label(path, others): RunFolder(path).events() for path in others}
        picture(RunFolder(first).events(), out, rivals)
    typer.echo(f"wrote {out}")


def runs_in(folder: Path) -> list[Path]:
    """The folder itself if it holds a run, else the runs in it, as `cdfl compare` keeps them."""
    if (folder / "events.jsonl").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/events.jsonl"))
    if not found:
        raise ValueError(f"{folder} holds no run; expected a folder with events.jsonl in it, or a folder of such ones")
    return found


def _label(path: Path, others: Sequence[Path]) -> str:
    """Its name; with its folder, where two are called the same."""
    return path.name if sum(other.name == path.name for other in others) == 1 else str(path)
