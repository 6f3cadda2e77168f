"""`cdfl scenarios`: the experiments that have a name."""

from rich.console import Console
from rich.table import Table

from cdfl.data import SOURCES
from cdfl.data.sources import data_folder, find_folder
from cdfl.scenarios import Scenario, list_scenarios


def scenarios() -> None:
    """List the scenarios: name, clusters, clients, uploads, model, and whether their data are here."""
    table = Table("name", "what", "clusters", "clients", "uploads", "model", "data")
    for scenario in list_scenarios():
        missing = [name for name in sources_of(scenario) if not _is_here(name)]
        table.add_row(
            scenario.name,
            scenario.summary,
            str(scenario.num_clusters),
            str(scenario.num_clients),
            f"{scenario.num_uploads:,}",
            scenario.model,
            "here" if not missing else f"cdfl data fetch {missing[0]}",
        )
    console = Console()
    console.print(table)
    console.print("A .toml or .py file of your own is a scenario, too: see docs/data.md.")


def sources_of(scenario: Scenario) -> list[str]:
    """The names of the datasets that a scenario reads."""
    given = getattr(scenario.clusters, "sources", None) or (getattr(scenario.clusters, "source", ""),)
    return [name for source in given for name in source.split("+") if name]


def _is_here(name: str) -> bool:
    source = SOURCES.get(name)
    return source is None or source.bundled or find_folder(source, data_folder()) is not None
