"""`cdfl paper`: the paper's tables and figures, run again."""

from pathlib import Path
from typing import Annotated, cast

import typer

from cdfl.cli.options import DataDir, DeviceName, PrecisionName, flag, refuse
from cdfl.paper.command import HELP, Only, names, obey
from cdfl.paper.failure import UnfinishedError
from cdfl.paper.run import How
from cdfl.signals import sigterm_interrupts
from cdfl.sim.engine_choice import Precision


def paper(
    name: Annotated[str, typer.Argument(help=HELP["name"])],
    rows: Annotated[str, typer.Option(help=HELP["rows"])] = "",
    presets: Annotated[str, typer.Option(help=HELP["presets"])] = "",
    algorithms: Annotated[str, typer.Option(help=HELP["algorithms"])] = "",
    trials: Annotated[int | None, typer.Option(min=1, help=HELP["trials"])] = None,
    out: Annotated[Path | None, typer.Option(help=HELP["out"])] = None,
    smoke: Annotated[bool, flag("--smoke", HELP["smoke"])] = False,
    device: DeviceName = "auto",
    precision: PrecisionName = "auto",
    together: Annotated[int | None, typer.Option(min=1, help=HELP["together"])] = None,
    processes: Annotated[int, typer.Option(min=1, help=HELP["processes"])] = 1,
    data_dir: DataDir = None,
    add: Annotated[list[Path] | None, typer.Option(help=HELP["add"])] = None,
) -> None:
    """Run a result of the paper, or the rest of it: JSON, tables, and pictures as PNG and SVG.

    `cdfl paper table1 --smoke`: seconds, to see that it works.

    `cdfl paper adaptation --rows digits-4-sudden`: minutes on a CPU, needs no download.

    `cdfl paper table1 --rows fashion-mnist-4`: a row of Table 1, minutes on a large GPU.
    """
    how = How(device, cast("Precision", precision), data_dir, together, processes, smoke)
    only = Only(names(rows), names(presets), names(algorithms))
    with refuse(ValueError, OSError, UnfinishedError), sigterm_interrupts():
        obey(name, how, out, trials, only, add or [], typer.echo)
