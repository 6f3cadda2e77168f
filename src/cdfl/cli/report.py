"""`cdfl report`: one HTML file about runs, with their plots."""

from pathlib import Path
from typing import Annotated

import typer

from cdfl.cli.options import Json, exit_on
from cdfl.cli.plot import Client, Runs
from cdfl.cli.run_folders import find_runs, read_runs
from cdfl.cli.stores import progress_bar
from cdfl.cli.tables import show


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder to write: report.html, plots (PNG, SVG), scores.csv.")] = Path(
        "report"
    ),
    client: Client = None,
    json_: Json = False,
) -> None:
    """Write a report: what was run, scores with their spread, mixtures, drift, staleness, bytes, what was odd.

    report.html needs no other file. Runs that differ in their seed only are one row and one curve.
    """
    with exit_on(ValueError, OSError):
        from cdfl.report import write_report

        found = find_runs(runs)
        read = read_runs(found)
        with progress_bar("drawing") as progress:
            files = write_report(found, read, out, client, progress)
    show(
        {"files": [str(file) for file in files]},
        None,
        as_json=json_,
        notes=[f"wrote {files[0]} and {len(files) - 1} files beside it"],
    )
