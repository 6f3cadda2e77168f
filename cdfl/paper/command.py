"""`cdfl paper`, without the command line: what to run, where to, and what is written."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from cdfl.paper.cells import Cell
from cdfl.paper.experiment import Experiment, list_experiments, load_experiment
from cdfl.paper.results import Results
from cdfl.paper.run import How, Tell, run_missing

SMOKE_TRIALS = 2


def perform(
    name: str,
    how: How,
    out: Path | None = None,
    trials: int | None = None,
    only: "Only | None" = None,
    tell: Tell = print,
) -> Path:
    """Run an experiment, or the rest of it, and write its results, tables and pictures; gives the folder."""
    experiment = load_experiment(name)
    folder = out or Path("runs") / ("paper-smoke" if how.smoke else "paper")
    if experiment.measure is not None:
        folder.mkdir(parents=True, exist_ok=True)
        experiment.measure(folder, how.smoke)
    cells = experiment.cells(trials or (SMOKE_TRIALS if how.smoke else experiment.trials))
    results = Results(folder)
    run_missing((only or Only()).of(cells), results, how, tell)
    write_report(experiment, results, tell)
    return folder


def write_report(experiment: Experiment, results: Results, tell: Tell = print) -> None:
    """Its tables as Markdown, its pictures as PNG and SVG, beside its results."""
    path = results.folder / f"{experiment.name}.md"
    path.write_text(experiment.report(results), encoding="utf-8")
    tell(f"wrote {path}")
    try:
        drawn = experiment.draw(results, results.folder)
    except ModuleNotFoundError as error:
        tell(f"no pictures: {error}; they need what comes with: pip install 'cdfl[sim]'")
        return
    for name in drawn:
        tell(f"wrote {results.folder / name}.png and .svg")


class Only:
    """Which cells of an experiment are asked for: rows (scenarios), presets, algorithms; empty means all."""

    def __init__(
        self, rows: Collection[str] = (), presets: Collection[str] = (), algorithms: Collection[str] = ()
    ) -> None:
        self.asked: dict[str, tuple[Collection[str], Callable[[Cell], str]]] = {
            "row": (rows, lambda cell: cell.scenario),
            "preset": (presets, lambda cell: cell.preset),
            "algorithm": (algorithms, lambda cell: cell.algorithm),
        }

    def of(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those cells; a name that none of them has is refused."""
        for what, (names, name_of) in self.asked.items():
            known = list(dict.fromkeys(name_of(cell) for cell in cells))
            for name in names:
                if name not in known:
                    raise ValueError(f"there is no {what} {name!r} in this experiment; there are {', '.join(known)}")
        return [
            cell for cell in cells if all(not names or name_of(cell) in names for names, name_of in self.asked.values())
        ]


def overview() -> str:
    """All experiments, a line each."""
    return "\n".join(f"{experiment.name:12} {experiment.title}" for experiment in list_experiments())
