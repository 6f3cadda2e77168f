"""One table or figure of the paper: what is run for it, its tables and its pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.harness.results_folder import Results
from experiments.harness.run_keys import RunKey

Tell = Callable[[str], None]


def _no_keys(trials: int) -> Sequence[RunKey]:
    return []


@dataclass(frozen=True)
class Experiment:
    """What a file in `experiments/` defines.

    It has run keys, or its own `measure`: `measure(results, smoke, tell)` adds what is missing to results.
    """

    name: str
    about: str  # docstring of its module: title, claim, settings, machine and cost
    report: Callable[[Results], str]  # its tables, as Markdown
    draw: Callable[[Results, Path], Sequence[str]]  # writes pictures; returns their names without suffix
    run_keys: Callable[[int], Sequence[RunKey]] = _no_keys  # by number of trials
    trials: int = 1
    smoke_rows: Sequence[str] = ()  # scenarios of a smoke run; all if empty
    on_request: Sequence[str] = ()  # scenarios that run only if they are named
    measure: Callable[[Results, bool, Tell], None] | None = None

    @property
    def title(self) -> str:
        """The first line of its docstring."""
        return self.about.strip().splitlines()[0].rstrip(".")
