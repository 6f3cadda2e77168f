"""`cdfl paper`, without the command line: what to run, where to, and what is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cdfl.paper.cells import Cell
from cdfl.paper.experiment import Experiment, list_experiments, load_experiment
from cdfl.paper.results import Results
from cdfl.paper.run import How, Tell, run_missing

SMOKE_TRIALS = 1


@dataclass(frozen=True)
class Only:
    """Which cells of an experiment are asked for; empty means all."""

    rows: Sequence[str] = ()  # scenarios
    presets: Sequence[str] = ()
    algorithms: Sequence[str] = ()

    def of(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those cells; a name that none of them has is refused."""
        for field, names in (("scenario", self.rows), ("preset", self.presets), ("algorithm", self.algorithms)):
            known = list(dict.fromkeys(getattr(cell, field) for cell in cells))
            for name in names:
                if name not in known:
                    raise ValueError(f"there is no {field} {name!r} in this experiment; there are {', '.join(known)}")
            cells = [cell for cell in cells if not names or getattr(cell, field) in names]
        return list(cells)


EVERYTHING = Only()


def perform(
    name: str,
    how: How,
    out: Path | None = None,
    trials: int | None = None,
    only: Only = EVERYTHING,
    tell: Tell = print,
) -> Path:
    """Run an experiment, or the rest of it, and write its results, tables and pictures; gives the folder."""
    experiment = load_experiment(name)
    folder = out or Path("runs") / ("paper-smoke" if how.smoke else "paper")
    if experiment.measure is not None:
        folder.mkdir(parents=True, exist_ok=True)
        experiment.measure(folder, how.smoke)
    cells = experiment.cells(trials or (SMOKE_TRIALS if how.smoke else experiment.trials))
    if how.smoke and not only.rows:
        only = replace(only, rows=experiment.smoke_rows)
    results = Results(folder)
    try:
        run_missing(only.of(cells), results, how, tell)
    except KeyboardInterrupt:
        tell("what is done is kept; the same command goes on")
        raise
    write_report(experiment, results, tell)
    return folder


def write_report(experiment: Experiment, results: Results, tell: Tell = print) -> None:
    """Its tables as Markdown and its pictures as PNG and SVG, beside its results."""
    path = results.folder / f"{experiment.name}.md"
    path.write_text(experiment.report(results), encoding="utf-8")
    tell(f"wrote {path}")
    draw(experiment, results, tell)


def draw(experiment: Experiment, results: Results, tell: Tell = print) -> None:
    """Its pictures, beside its results."""
    try:
        drawn = experiment.draw(results, results.folder)
    except ModuleNotFoundError as error:
        tell(f"no pictures: {error}; they need what comes with: pip install 'cdfl[sim]'")
        return
    for name in drawn:
        tell(f"wrote {results.folder / name}.png and .svg")


def overview() -> str:
    """All experiments, a line each."""
    return "\n".join(f"{experiment.name:12} {experiment.title}" for experiment in list_experiments())
