"""The command line of the experiments: `python -m experiments`, or `cdfl paper`."""

from pathlib import Path
from typing import Annotated, cast

import typer

from cdfl.algorithms import ALGORITHMS
from cdfl.cli.options import DataDir, DeviceName, exit_on, flag
from cdfl.cli.run_options import Address, Cores, EngineName, NumWorkers, PrecisionName
from cdfl.on_ray.connection import find_engine
from cdfl.signals import sigterm_interrupts
from cdfl.sim.engine_choice import Precision
from cdfl.sim.presets import PRESETS
from experiments.commands import FOLDER, SMOKE_FOLDER, RunFilter, execute
from experiments.harness.figure_style import LABELS
from experiments.harness.runner import RunOptions, UnfinishedError
from experiments.registry import EXPERIMENTS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
NAME = f"{', '.join(EXPERIMENTS)}; list: show all with their rows; readme: write experiments/README.md."
ROWS = "Scenarios, separated by commas; default: all that `list` shows."
ALGORITHM_NAMES = ", ".join(f"{name} ({LABELS[name]})" for name in ALGORITHMS)
OUT = f"Folder of results; what it holds is not run again. Default: {FOLDER}, or {SMOKE_FOLDER}."
TOGETHER = "Runs in common stacks: more are faster and need more memory. Default: 10, or 1 for a ResNet."


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@app.command()
def main(
    name: Annotated[str, typer.Argument(help=NAME)],
    rows: Annotated[str, typer.Option(help=ROWS)] = "",
    presets: Annotated[str, typer.Option(help=f"Of {', '.join(PRESETS)}, separated by commas; default: all.")] = "",
    algorithms: Annotated[str, typer.Option(help=f"Of {ALGORITHM_NAMES}, separated by commas; default: all.")] = "",
    trials: Annotated[int | None, typer.Option(min=1, help="Number of seeds; default: the experiment's.")] = None,
    out: Annotated[Path | None, typer.Option(help=OUT)] = None,
    smoke: Annotated[bool, flag("--smoke", "Check in seconds that it works, on 8x8 digits.")] = False,
    device: DeviceName = "auto",
    precision: PrecisionName = "auto",
    together: Annotated[int | None, typer.Option(min=1, help=TOGETHER)] = None,
    processes: Annotated[int, typer.Option(min=1, help="Groups of runs side by side.")] = 1,
    engine: EngineName = "local",
    address: Address = None,
    workers: NumWorkers = None,
    cores: Cores = None,
    data_dir: DataDir = None,
    add: Annotated[
        list[Path] | None, typer.Option(help="readme: first copy the results in this folder; may be repeated.")
    ] = None,
    commit: Annotated[str | None, typer.Option(help="Commit of the code, for a copy without git.")] = None,
) -> None:
    """Run a table or figure of the paper, or what is missing of it; write JSON, tables and pictures.

    `cdfl paper table1 --smoke`: seconds, checks that it works.

    `cdfl paper adaptation --rows digits-4-sudden`: minutes on a CPU, needs no download.

    `cdfl paper table1 --rows fashion-mnist-4`: one row of Table 1, minutes on a large GPU.
    """
    only = RunFilter(_names(rows), _names(presets), _names(algorithms))
    with exit_on(ValueError, OSError, UnfinishedError), sigterm_interrupts():
        cluster = find_engine(engine, address=address, workers=workers, cores=cores)
        options = RunOptions(
            device, cast("Precision", precision), data_dir, together, processes, smoke, commit, cluster
        )
        execute(name, options, out, trials, only, add or [], typer.echo)


if __name__ == "__main__":
    app(prog_name="python -m experiments")
