"""Scenarios: problems with their simulated clients, by name, and a user's own.

>>> scenario = load_scenario("fashion-mnist-4")
>>> scenario.num_clients, scenario.num_uploads, scenario.model
(80, 2000, 'cnn')
"""

from pathlib import Path

from cdfl.argument_checks import did_you_mean
from cdfl.data import DataError
from cdfl.problems import Problem
from cdfl.scenarios.builtin import SCENARIOS
from cdfl.scenarios.problem_files import read_python, read_toml
from cdfl.scenarios.scenario import Scenario


def load_problem(place: str | Path | Problem) -> Problem:
    """Return a scenario by its name, or read a problem from a `.toml` file, a Python file or a module."""
    if isinstance(place, Problem):
        return place
    if not isinstance(place, str | Path):
        raise ValueError(f"a problem is {place!r}; expected cdfl.Problem, the name of a scenario, or a file")
    place = str(place)
    if place in SCENARIOS:
        return SCENARIOS[place]
    path = Path(place).expanduser()
    if path.suffix == ".toml":
        return read_toml(path)
    if path.suffix == ".py" or path.is_file():
        return read_python(str(path))
    try:
        return read_python(place)
    except ValueError as error:
        if not str(error).startswith("there is no file or module"):
            raise
    raise DataError(
        f"there is no scenario {place!r}; `cdfl scenarios` lists them; a .toml or .py file works, too"
        f"{did_you_mean(place, SCENARIOS)}"
    )


def load_scenario(place: str) -> Scenario:
    """Return a problem as `load_problem` does, with its clients."""
    return Scenario.of(load_problem(place))


def list_scenarios() -> list[Scenario]:
    """Return all named scenarios."""
    return list(SCENARIOS.values())


__all__ = ["SCENARIOS", "Scenario", "list_scenarios", "load_problem", "load_scenario"]
