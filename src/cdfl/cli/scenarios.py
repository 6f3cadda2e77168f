"""`cdfl scenarios`: list the built-in scenarios."""

from pathlib import Path

from cdfl.cli.options import DataDir, Json
from cdfl.cli.tables import make_table, show
from cdfl.data import SOURCES
from cdfl.data.sources import data_folder, find_folder
from cdfl.scenarios import list_scenarios


def scenarios(data_dir: DataDir = None, json_: Json = False) -> None:
    """List the scenarios: name, clusters (K), clients, uploads, and whether their data are on this machine."""
    root = data_folder(data_dir)
    table = make_table("name", "K", "clients", "uploads", "data", "what...")
    values = []
    for scenario in list_scenarios():
        is_here = all(_is_here(name, root) for name in scenario.sources)
        sizes = scenario.num_clusters, scenario.num_clients, scenario.num_uploads
        table.add_row(scenario.name, *(f"{size:,}" for size in sizes), "here" if is_here else "-", scenario.summary)
        named = dict(zip(("num_clusters", "num_clients", "num_uploads"), sizes, strict=True))
        values.append({"name": scenario.name, **named, "is_here": is_here, "summary": scenario.summary})
    notes = ["Missing data: see `cdfl data list`. You can also run your own .toml or .py file."]
    show(values, table, as_json=json_, notes=notes)


def _is_here(name: str, root: Path) -> bool:
    source = SOURCES.get(name)
    return source is None or source.bundled or find_folder(source, root) is not None
