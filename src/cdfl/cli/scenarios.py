"""`cdfl scenarios`: list the built-in scenarios."""

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cdfl.cli.options import DataDir
from cdfl.data import SOURCES, DataError
from cdfl.data.sources import data_folder, find_folder
from cdfl.scenarios import Scenario, list_scenarios


def scenarios(data_dir: DataDir = None) -> None:
    """List the scenarios: name, clusters (K), clients, uploads, and whether their data are on this machine."""
    root = data_folder(data_dir)
    table = Table("name", "K", "clients", "uploads", "data", "what", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap = True
    for scenario in list_scenarios():
        table.add_row(
            scenario.name,
            _num_clusters(scenario),
            str(scenario.num_clients),
            f"{scenario.num_uploads:,}",
            "here" if all(_is_here(name, root) for name in scenario.sources) else "-",
            scenario.summary,
        )
    console = Console()
    console.print(table)
    console.print("Missing data: see `cdfl data list`. You can also run your own .toml or .py file.")


def _num_clusters(scenario: Scenario) -> str:
    """Return K; nothing if that takes data which are not here."""
    try:
        return str(scenario.num_clusters)
    except (DataError, ModuleNotFoundError):
        return "-"


def _is_here(name: str, root: Path) -> bool:
    source = SOURCES.get(name)
    return source is None or source.is_installed or (not source.bundled and find_folder(source, root) is not None)
