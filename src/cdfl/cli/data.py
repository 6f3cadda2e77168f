"""`cdfl data`: list, download, check and view datasets."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.markup import escape

from cdfl.cli.options import DataDir, Json, exit_on
from cdfl.cli.stores import progress_bar
from cdfl.cli.tables import make_table, show
from cdfl.data import DataError, data_folder
from cdfl.data.sources import SOURCES, check, fetch, find_folder
from cdfl.data.split import SPLITS
from cdfl.scenarios import load_problem, load_scenario

MOST_COLUMNS = 100  # the largest number of classes of a dataset

app = typer.Typer(help="List, download, check and view datasets.", no_args_is_help=True)


@app.command("list")
def list_(data_dir: DataDir = None, json_: Json = False) -> None:
    """List the datasets, whether their files are on this machine, and where they come from."""
    root = data_folder(data_dir)
    table = make_table("name", "what...", "train", "test", "here", "from")
    values = []
    for source in SOURCES.values():
        here = source.is_installed or (not source.bundled and find_folder(source, root) is not None)
        origin = source.bundled if source.bundled else "fetch" if source.files else "by hand"
        counts = f"{source.num_train:,}", f"{source.num_test:,}"
        table.add_row(source.name, source.summary, *counts, "yes" if here else "-", origin)
        sizes = {"num_train": source.num_train, "num_test": source.num_test}
        values.append({"name": source.name, "summary": source.summary, **sizes, "is_here": here, "from": origin})
    found = {"folder": str(root), "datasets": values}
    show(found, table, as_json=json_, notes=[f"data folder: {root}"])


@app.command("fetch")
def fetch_(name: str, data_dir: DataDir = None, json_: Json = False) -> None:
    """Download a dataset into the data folder and check its published checksum."""
    with exit_on(DataError):
        folder = fetch(name, data_dir, progress=True)
    note = f"{name} comes with {SOURCES[name].bundled}" if folder is None else f"{name} is in {folder}"
    show({"name": name, "folder": folder and str(folder)}, None, as_json=json_, notes=[note])


@app.command("check")
def check_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset, a scenario, or your own .toml or .py file.")],
    seed: Annotated[int, typer.Option(min=0, help="Of the split and of pre-training, for a problem.")] = 0,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Check a dataset, or whether the clusters of a problem can be told apart.

    A dataset's checksums and number of images are compared with the published ones. For a problem, its clusters are
    pre-trained, and the model of each is evaluated on the proxy set of each. The exit code is 1 if something is wrong.
    """
    if name not in SOURCES:
        with exit_on(ValueError, OSError):
            _check_problem(name, seed, data_dir, as_json=json_)
        return
    with exit_on(DataError):
        report = check(name, data_dir)
    values = {"name": name, "verdict": report.verdict, "lines": report.lines}
    show(values, None, as_json=json_, notes=[*report.lines, f"{name}: {report.verdict}"])
    if report.verdict != "ok":
        raise typer.Exit(1)


@app.command("sheet")
def sheet(
    names: Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Names, or .toml or .py files.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures, SCENARIO.png each.")] = Path(),
    columns: Annotated[int, typer.Option(min=1, max=MOST_COLUMNS, help="Images of each cluster.")] = 10,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Draw a contact sheet of each scenario, with images of every cluster, and print notes on its data."""
    from cdfl.data.contact_sheet import save_sheet

    values, lines = [], []
    for name in names:
        with exit_on(ValueError):
            scenario = load_scenario(name)
            path = out / f"{scenario.name}.png"
            federation = scenario.federation(data_dir=data_dir)
            save_sheet(federation, path, columns)
        values.append({"file": str(path), "notes": federation.notes})
        lines += [str(path), *federation.notes]
    show(values, None, as_json=json_, notes=lines)


def _check_problem(name: str, seed: int, data_dir: Path | None, *, as_json: bool) -> None:
    """Print the sizes of the clusters, the matrix of losses, and a sentence for each thing that is wrong."""
    from cdfl.problems import ProblemInstance

    problem = load_problem(name)
    federation = problem.federation(seed, data_dir)
    instance = ProblemInstance(problem, federation)
    instance.check()
    kind = "images" if federation.is_image else "inputs"
    shape = "x".join(map(str, federation.input_shape)) or "one number"
    head = f"{federation.num_clusters} clusters, {kind} {shape}, {federation.num_outputs} outputs"
    sizes = make_table("cluster", "pretraining", "clients train", "proxy", "clients test", title=head)
    counts = [[len(split.part(part)) for part in SPLITS] for split in federation.splits]
    for own, numbers in zip(federation.names, counts, strict=True):
        sizes.add_row(escape(own), *(f"{number:,}" for number in numbers))
    with progress_bar("pre-training the clusters") as progress:
        found = instance.separation(instance.pretrain(trained=progress))
    losses = make_table("model of", *map(escape, federation.names), title="loss on the proxy set of")
    for own, row in zip(federation.names, found.losses.tolist(), strict=True):
        losses.add_row(escape(own), *(f"{loss:.3g}" for loss in row))
    wrong = instance.warnings(found)
    values = {
        "clusters": federation.names,
        "sizes": [dict(zip(SPLITS, numbers, strict=True)) for numbers in counts],
        "losses": found.losses.tolist(),
        "warnings": wrong,
    }
    notes = [*federation.notes, *wrong] or ["the clusters can be told apart"]
    show(values, Group(sizes, losses), as_json=as_json, notes=notes)
    if wrong:
        raise typer.Exit(1)
