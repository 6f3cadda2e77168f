"""What the command line does: list the experiments, write the README, or run an experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.harness import Cell, Experiment, Results
from experiments.harness.experiment import Tell
from experiments.harness.failures import UnfinishedError
from experiments.harness.runner import How, run_missing
from experiments.pages import write_readme, write_report
from experiments.registry import EXPERIMENTS, find_experiment

SMOKE_TRIALS = 1
FOLDER, SMOKE_FOLDER = Path("runs/paper"), Path("runs/paper-smoke")
KINDS = {"--rows": "scenario", "--presets": "preset", "--algorithms": "algorithm"}  # option -> field of a cell


@dataclass(frozen=True)
class Only:
    """Which cells of an experiment to run; empty means all."""

    rows: Sequence[str] = ()  # scenarios
    presets: Sequence[str] = ()
    algorithms: Sequence[str] = ()

    def of(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the chosen cells; refuse a name that none of them has."""
        where = "in this experiment"
        for option, names in self.options.items():
            kind = KINDS[option]
            known = list(dict.fromkeys(getattr(cell, kind) for cell in cells))
            for name in names:
                if name not in known:
                    raise ValueError(f"there is no {kind} {name!r} {where}; there are {', '.join(known)}")
            if names:
                cells = [cell for cell in cells if getattr(cell, kind) in names]
                where += f" with {option} {','.join(names)}"
        return list(cells)

    @property
    def options(self) -> dict[str, Sequence[str]]:
        """The choices by the names of the command line."""
        return {"--rows": self.rows, "--presets": self.presets, "--algorithms": self.algorithms}


EVERYTHING = Only()


def execute(
    name: str, how: How, out: Path | None, trials: int | None, only: Only, add: Sequence[Path], tell: Tell = print
) -> None:
    """Run a command; refuse options that it does not use.

    `--data-dir` may come from the environment, so it is never refused.
    """
    unused = _choices(how, trials, only) | {"--out": out, "--smoke": how.smoke, "--device": how.device != "auto"}
    if name == "list":
        _refuse("list shows every experiment with all its rows", unused | {"--add": add})
        tell(overview())
    elif name == "readme":
        _refuse("readme runs nothing: it writes the README from experiments/results", unused)
        write_readme(tell, add)
    else:
        _refuse("only readme copies results", {"--add": add})
        run_experiment(name, how, out, trials, only, tell)


def run_experiment(
    name: str,
    how: How,
    out: Path | None = None,
    trials: int | None = None,
    only: Only = EVERYTHING,
    tell: Tell = print,
) -> Path:
    """Run what is missing of an experiment, write its results, tables and pictures; return the folder."""
    experiment = find_experiment(name)
    folder = out or (SMOKE_FOLDER if how.smoke else FOLDER)
    results = Results(folder)
    results.expect(smoke=how.smoke)
    try:
        if experiment.measure is not None:
            why = f"{name} is one computation on the CPU, without rows, presets, algorithms or trials to choose from"
            _refuse(why, _choices(how, trials, only) | {"--device": how.device not in ("auto", "cpu")})
            experiment.measure(results, how.smoke, tell)
        else:
            run_missing(cells_of(experiment, how, trials, only), results, how, tell)
    except (KeyboardInterrupt, UnfinishedError) as error:
        if isinstance(error, KeyboardInterrupt):
            tell("repeat the command to run what is missing")
        write_report(experiment, results, tell)
        raise
    write_report(experiment, results, tell)
    return folder


def cells_of(experiment: Experiment, how: How, trials: int | None, only: Only) -> list[Cell]:
    """Return the cells of an experiment that a command asks for."""
    if trials is None:
        trials = SMOKE_TRIALS if how.smoke else experiment.trials
    cells = list(experiment.cells(trials))
    if how.smoke and not only.rows:
        cells = Only(rows=experiment.smoke_rows).of(cells)
    elif not only.rows:
        cells = [cell for cell in cells if cell.scenario not in experiment.on_request]
    return only.of(cells)


def _choices(how: How, trials: int | None, only: Only) -> dict[str, object]:
    """Return the options that only runs of cells use; a value is true if the option was given."""
    return {
        **only.options,
        "--trials": trials,
        "--together": how.together,
        "--processes": how.processes != 1,
        "--precision": how.precision != "auto",
    }


def _refuse(why: str, options: Mapping[str, object]) -> None:
    unused = [option for option, value in options.items() if value]
    if unused:
        raise ValueError(f"{why}; omit {', '.join(unused)}")


def overview() -> str:
    """Return all experiments, with the rows of each."""
    lines = []
    for experiment in EXPERIMENTS.values():
        every = dict.fromkeys(cell.scenario for cell in experiment.cells(1))
        lines.append(f"{experiment.name:12} {experiment.title}")
        rows = [row for row in every if row not in experiment.on_request]
        lines += [f"{'':12} --rows {','.join(rows)}"] if rows else []
        more = ",".join(row for row in every if row in experiment.on_request)
        lines += [f"{'':12} on request: --rows {more}"] if more else []
    return "\n".join(lines)
