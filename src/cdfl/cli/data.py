"""`cdfl data`: list, download, check and view datasets."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cdfl.cli.options import DataDir, exit_on
from cdfl.data import DataError, data_folder
from cdfl.data.sources import SOURCES, check, fetch, find_folder
from cdfl.data.split import SPLITS
from cdfl.scenarios import load_problem, load_scenario

MOST_COLUMNS = 100  # the largest number of classes of a dataset

app = typer.Typer(help="List, download, check and view datasets.", no_args_is_help=True)


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the datasets, whether their files are on this machine, and where they come from."""
    root = data_folder(data_dir)
    table = Table("name", "what", "train", "test", "here", "from", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap = True
    for source in SOURCES.values():
        here = source.is_installed or (not source.bundled and find_folder(source, root) is not None)
        origin = source.bundled if source.bundled else "fetch" if source.files else "by hand"
        counts = f"{source.num_train:,}", f"{source.num_test:,}"
        table.add_row(source.name, source.summary, *counts, "yes" if here else "-", origin)
    console = Console()
    console.print(table)
    console.print(f"data folder: {root}", soft_wrap=True, markup=False)


@app.command("fetch")
def fetch_(name: str, data_dir: DataDir = None) -> None:
    """Download a dataset into the data folder and check its published checksum."""
    with exit_on(DataError):
        folder = fetch(name, data_dir, progress=True)
    Console().print(
        f"{name} comes with {SOURCES[name].bundled}" if folder is None else f"{name} is in {folder}", soft_wrap=True
    )


@app.command("check")
def check_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset, a scenario, or your own .toml or .py file.")],
    seed: Annotated[int, typer.Option(min=0, help="Of the split and of pre-training, for a problem.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Check a dataset, or whether the clusters of a problem can be told apart.

    A dataset's checksums and number of images are compared with the published ones. For a problem, its clusters are
    pre-trained, and the model of each is evaluated on the proxy set of each. The exit code is 1 if something is wrong.
    """
    console = Console()
    if name not in SOURCES:
        with exit_on(ValueError, OSError):
            _check_problem(name, seed, data_dir, console)
        return
    with exit_on(DataError):
        report = check(name, data_dir)
    for line in report.lines:
        console.print(line, soft_wrap=True)
    console.print(f"{name}: {report.verdict}")
    if report.verdict != "ok":
        raise typer.Exit(1)


@app.command("sheet")
def sheet(
    names: Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Names, or .toml or .py files.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures, SCENARIO.png each.")] = Path(),
    columns: Annotated[int, typer.Option(min=1, max=MOST_COLUMNS, help="Images of each cluster.")] = 10,
    data_dir: DataDir = None,
) -> None:
    """Draw a contact sheet of each scenario, with images of every cluster, and print notes on its data."""
    from cdfl.data.contact_sheet import save_sheet

    console = Console()
    for name in names:
        with exit_on(ValueError):
            scenario = load_scenario(name)
            path = out / f"{scenario.name}.png"
            federation = scenario.federation(data_dir=data_dir)
            save_sheet(federation, path, columns)
        for line in (str(path), *federation.notes):
            console.print(line, soft_wrap=True, highlight=False, markup=False)


def _check_problem(name: str, seed: int, data_dir: Path | None, console: Console) -> None:
    """Print the sizes of the clusters, the matrix of losses, and a sentence for each thing that is wrong."""
    from cdfl.problems import Task

    problem = load_problem(name)
    federation = problem.federation(seed, data_dir)
    task = Task(problem, federation)
    task.check()
    kind = "images" if federation.is_image else "inputs"
    shape = "x".join(map(str, federation.input_shape)) or "one number"
    console.print(f"{federation.num_clusters} clusters, {kind} {shape}, {federation.num_outputs} outputs", markup=False)
    sizes = Table("cluster", "pretraining", "clients train", "proxy", "clients test", box=SIMPLE_HEAD)
    for own, split in zip(federation.names, federation.splits, strict=True):
        sizes.add_row(escape(own), *(f"{len(split.part(part)):,}" for part in SPLITS))
    console.print(sizes)
    with console.status("pre-training the clusters"):
        found = task.separation(task.pretrain())
    losses = Table("model of", *map(escape, federation.names), box=SIMPLE_HEAD, title="loss on the proxy set of")
    for own, row in zip(federation.names, found.losses.tolist(), strict=True):
        losses.add_row(escape(own), *(f"{loss:.3g}" for loss in row))
    console.print(losses)
    warnings = [*federation.notes, *task.warnings(found)]
    for line in warnings or ["the clusters can be told apart"]:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if task.warnings(found):
        raise typer.Exit(1)
