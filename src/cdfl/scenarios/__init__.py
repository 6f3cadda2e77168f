"""Scenarios: named experiments, and a user's own.

>>> scenario = load_scenario("fashion-mnist-4")
>>> scenario.num_clients, scenario.num_uploads, scenario.model
(80, 2000, 'cnn')
"""

from pathlib import Path

from cdfl.data import DataError
from cdfl.scenarios.catalogue import SCENARIOS
from cdfl.scenarios.files import read_scenario
from cdfl.scenarios.scenario import Scenario


def load_scenario(name_or_path: str) -> Scenario:
    """Return a scenario by its name, or read it from a `.toml` or `.py` file."""
    if name_or_path in SCENARIOS:
        return SCENARIOS[name_or_path]
    if name_or_path.endswith((".toml", ".py")):
        return read_scenario(Path(name_or_path).expanduser())
    raise DataError(
        f"there is no scenario {name_or_path!r}; `cdfl scenarios` lists them; a .toml or .py file works, too"
    )


def list_scenarios() -> list[Scenario]:
    """Return all named scenarios."""
    return list(SCENARIOS.values())


__all__ = ["SCENARIOS", "Scenario", "list_scenarios", "load_scenario"]
