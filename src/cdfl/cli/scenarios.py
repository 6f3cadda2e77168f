"""`cdfl scenarios`: list the built-in scenarios."""

from pathlib import Path

from cdfl.cli.options import DataDir, Json
from cdfl.cli.tables import make_table, show
from cdfl.data import SOURCES, DataError
from cdfl.data.sources import data_folder, find_folder
from cdfl.scenarios import Scenario, list_scenarios


def scenarios(data_dir: DataDir = None, json_: Json = False) -> None:
    """List the scenarios: name, clusters (K), clients, uploads, and whether their data are on this machine."""
    root = data_folder(data_dir)
    table = make_table("name", "K", "clients", "uploads", "data", "what...")
    values = []
    for scenario in list_scenarios():
        is_here = all(_is_here(name, root) for name in scenario.sources)
        clusters, sizes = _num_clusters(scenario), (scenario.num_clients, scenario.num_uploads)
        shown = ["-" if clusters is None else str(clusters), *(f"{size:,}" for size in sizes)]
        table.add_row(scenario.name, *shown, "here" if is_here else "-", scenario.summary)
        named = dict(zip(("num_clusters", "num_clients", "num_uploads"), (clusters, *sizes), strict=True))
        values.append({"name": scenario.name, **named, "is_here": is_here, "summary": scenario.summary})
    notes = ["Missing data: see `cdfl data list`. You can also run your own .toml or .py file."]
    show(values, table, as_json=json_, notes=notes)


def _num_clusters(scenario: Scenario) -> int | None:
    """Return K; None if that takes data which are not here."""
    try:
        return scenario.num_clusters
    except (DataError, ModuleNotFoundError):
        return None


def _is_here(name: str, root: Path) -> bool:
    source = SOURCES.get(name)
    return source is None or source.is_installed or (not source.bundled and find_folder(source, root) is not None)
