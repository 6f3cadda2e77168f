"""The files in `experiments/`: one result of the paper each.

An experiment is a Python file with a docstring (its claim, settings, machine and cost) and

- `NUMBER`: its place in lists;
- `TRIALS`: how many seeds it takes, if not told otherwise; `SMOKE_ROWS`: the scenarios that a smoke run takes;
  `ON_REQUEST`: those that are run where somebody names them, and not else;
- `cells(trials)`: the cells it is made of; or `measure(results, smoke, tell)`, which adds something else to results,
  or the rest of it;
- `report(results)`: its tables and what they say, as Markdown, from what is there; `verdict(results)`: in a sentence or
  two, for the page that sums all up;
- `draw(results, folder)`: its pictures; gives the names of the files, less their endings.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdfl.paper.cells import Cell
from cdfl.paper.folder import experiments_folder
from cdfl.paper.results import Results
from cdfl.paper.run import Tell


@dataclass(frozen=True)
class Experiment:
    """One file of `experiments/`."""

    name: str
    number: int
    about: str  # its docstring
    trials: int
    smoke_rows: Sequence[str]
    on_request: Sequence[str]
    cells: Callable[[int], Sequence[Cell]]
    measure: Callable[[Results, bool, Tell], None] | None
    report: Callable[[Results], str]
    verdict: Callable[[Results], str]
    draw: Callable[[Results, Path], Sequence[str]]

    @property
    def title(self) -> str:
        """The first sentence of what it says about itself."""
        return self.about.strip().splitlines()[0].rstrip(".")


def load_experiment(name: str) -> Experiment:
    """An experiment by the name of its file."""
    path = experiments_folder() / f"{name}.py"
    if not path.is_file():
        known = ", ".join(experiment.name for experiment in list_experiments())
        raise ValueError(f"there is no experiment {name!r}; there are {known}")
    spec = importlib.util.spec_from_file_location(f"experiments.{name}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Experiment(
        name,
        module.NUMBER,
        module.__doc__ or "",
        getattr(module, "TRIALS", 1),
        getattr(module, "SMOKE_ROWS", ()),
        getattr(module, "ON_REQUEST", ()),
        getattr(module, "cells", lambda trials: []),
        getattr(module, "measure", None),
        module.report,
        module.verdict,
        module.draw,
    )


def list_experiments() -> list[Experiment]:
    """All of them, in their order."""
    found = [load_experiment(path.stem) for path in sorted(experiments_folder().glob("*.py"))]
    return sorted(found, key=lambda experiment: experiment.number)
