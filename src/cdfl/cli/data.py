"""`cdfl data`: list, download, check and view datasets."""

from pathlib import Path
from typing import Annotated

import typer

from cdfl.cli.options import DataDir, Json, exit_on
from cdfl.cli.tables import make_table, show
from cdfl.data import DataError, data_folder
from cdfl.data.sources import SOURCES, check, fetch, find_folder
from cdfl.scenarios import load_scenario

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
def check_(name: str, data_dir: DataDir = None, json_: Json = False) -> None:
    """Compare a dataset's checksums and number of images with the published ones.

    The exit code is 1 if the dataset is missing or differs.
    """
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
