"""`cdfl paper`: the paper's tables and figures, run again."""

from pathlib import Path
from typing import Annotated, cast

import typer

from cdfl.cli.options import DataDir, DeviceName, PrecisionName, flag, refuse
from cdfl.paper.command import Only, overview, perform
from cdfl.paper.pages import write_pages
from cdfl.paper.run import How
from cdfl.sim.engines import Precision
from cdfl.stop import stoppable

Names = Annotated[str, typer.Option(help="Names with commas between them; all if not given.")]


def paper(
    name: Annotated[str, typer.Argument(help="An experiment; or list, what there is; or readme, write the pages.")],
    rows: Annotated[str, typer.Option(help="Scenarios, with commas between them; all if not given.")] = "",
    presets: Names = "",
    algorithms: Names = "",
    trials: Annotated[int | None, typer.Option(min=1, help="Seeds 0, 1, ...; if not given, the experiment's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of results; what it holds is not run again.")] = None,
    smoke: Annotated[bool, flag("--smoke", "Seconds instead of hours, on 8x8 digits.")] = False,
    device: DeviceName = "auto",
    precision: PrecisionName = "auto",
    together: Annotated[int | None, typer.Option(min=1, help="Runs in common stacks; more are faster.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the device.")] = 1,
    data_dir: DataDir = None,
    add: Annotated[list[Path] | None, typer.Option(help="readme: add the results in this folder first.")] = None,
) -> None:
    """Run a result of the paper, or the rest of it: JSON, tables, and pictures as PNG and SVG."""
    with refuse(ValueError, OSError):
        if name == "list":
            typer.echo(overview())
        elif name == "readme":
            write_pages(typer.echo, add or [])
        else:
            how = How(device, cast("Precision", precision), data_dir, together, processes, smoke)
            only = Only(_names(rows), _names(presets), _names(algorithms))
            with stoppable():
                perform(name, how, out, trials, only, typer.echo)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
