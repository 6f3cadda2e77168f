"""`cdfl plot`: a run folder as a picture."""

from pathlib import Path
from typing import Annotated

import typer

from cdfl.cli.options import refuse
from cdfl.record import RunFolder
from cdfl.report import picture


def plot(
    run: Annotated[Path, typer.Argument(help="A folder that `cdfl run` or `cdfl compare` has filled.")],
    out: Annotated[Path, typer.Option(help="The picture: .png, .svg or .pdf.")] = Path("run.png"),
    against: Annotated[list[Path] | None, typer.Option(help="Another run to compare with; may be repeated.")] = None,
) -> None:
    """Draw a run: accuracy before and after the reply, and one client's true and estimated mixtures."""
    with refuse(ValueError, OSError):
        for folder in (run, *(against or [])):
            if not (folder / "events.jsonl").exists():
                raise ValueError(f"{folder} holds no run; expected a folder with events.jsonl in it")
        rivals = {folder.name: RunFolder(folder).events() for folder in against or []}
        picture(RunFolder(run).events(), out, rivals)
    typer.echo(f"wrote {out}")
