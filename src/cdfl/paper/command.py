"""`cdfl paper`, without the command line: what to run, where to, and what is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdfl.algorithms import ALGORITHMS
from cdfl.paper.cells import Cell
from cdfl.paper.experiment import Experiment, list_experiments, load_experiment
from cdfl.paper.failure import UnfinishedError
from cdfl.paper.figures import LABELS
from cdfl.paper.pages import write_pages, write_report
from cdfl.paper.results import Results
from cdfl.paper.run import How, Tell, run_missing
from cdfl.sim.presets import PRESETS

SMOKE_TRIALS = 1
FOLDER, SMOKE_FOLDER = Path("runs/paper"), Path("runs/paper-smoke")
HELP = {  # of the command line, by parameter
    "name": "reading, table1, over_time, estimation, overhead, ablations, theorem1 or adaptation; list: what each is, "
    "and its rows; readme: write experiments/README.md and docs/paper.md from experiments/results.",
    "rows": "Scenarios, with commas between them, as in `list`; all if not given.",
    "presets": f"Of {', '.join(PRESETS)}, with commas between them; all if not given.",
    "algorithms": f"Of {', '.join(f'{name} ({LABELS[name]})' for name in ALGORITHMS)}, with commas between them; all "
    "if not given.",
    "trials": "How many seeds, 0, 1, ...; if not given, the experiment's own number, mostly 5.",
    "out": "Folder of results and nothing else; what it holds is not run again, so a copy of experiments/results gives "
    f"what we ran. Default: {FOLDER}, or {SMOKE_FOLDER}.",
    "smoke": "Seconds instead of hours, on 8x8 digits: shows that it works, nothing else.",
    "together": "Runs in common stacks: more are faster and take more memory. Default: 10, and 1 for a ResNet.",
    "processes": "Groups of runs side by side, each with memory of its own.",
    "add": "readme: first copy the results in this folder to experiments/results; may be repeated.",
}
KINDS = {"--rows": "scenario", "--presets": "preset", "--algorithms": "algorithm"}  # what a cell calls them


@dataclass(frozen=True)
class Only:
    """Which cells of an experiment are asked for; empty means all."""

    rows: Sequence[str] = ()  # scenarios
    presets: Sequence[str] = ()
    algorithms: Sequence[str] = ()

    def of(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those cells; a name that none of them has is refused."""
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
        """What is asked for, by the names of the command line."""
        return {"--rows": self.rows, "--presets": self.presets, "--algorithms": self.algorithms}


EVERYTHING = Only()


def obey(
    name: str, how: How, out: Path | None, trials: int | None, only: Only, add: Sequence[Path], tell: Tell = print
) -> None:
    """What a command line asks for: the list, the pages, or an experiment; an option that it has no use for is refused.

    `--data-dir` may come from the environment, and is let through.
    """
    where: dict[str, object] = {"--out": out, "--smoke": how.smoke, "--device": how.device != "auto"}
    unasked = _choices(how, trials, only) | where
    if name == "list":
        _refuse("list shows every experiment with all its rows", unasked | {"--add": add})
        tell(overview())
    elif name == "readme":
        _refuse("readme runs nothing: it writes the pages from what experiments/results holds", unasked)
        write_pages(tell, add)
    else:
        _refuse("only readme copies results", {"--add": add})
        perform(name, how, out, trials, only, tell)


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
    folder = out or (SMOKE_FOLDER if how.smoke else FOLDER)
    results = Results(folder)
    results.expect(smoke=how.smoke)
    try:
        if experiment.measure is not None:
            why = f"{name} is one computation on the CPU, without rows, presets, algorithms or trials to choose from"
            _refuse(why, _choices(how, trials, only) | {"--device": how.device not in ("auto", "cpu")})
            experiment.measure(results, how.smoke, tell)
        else:
            run_missing(_cells(experiment, how, trials, only), results, how, tell)
    except (KeyboardInterrupt, UnfinishedError) as error:
        if isinstance(error, KeyboardInterrupt):
            tell("the same command runs what is missing")
        write_report(experiment, results, tell)
        raise
    write_report(experiment, results, tell)
    return folder


def _cells(experiment: Experiment, how: How, trials: int | None, only: Only) -> list[Cell]:
    if trials is None:
        trials = SMOKE_TRIALS if how.smoke else experiment.trials
    cells = experiment.cells(trials)
    if how.smoke and not only.rows:
        cells = Only(rows=experiment.smoke_rows).of(cells)
    elif not only.rows:
        cells = [cell for cell in cells if cell.scenario not in experiment.on_request]
    return only.of(cells)


def _choices(how: How, trials: int | None, only: Only) -> dict[str, object]:
    """What only runs of cells look at, by the names of the command line; something true where it was given."""
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
        raise ValueError(f"{why}; leave {', '.join(unused)} away")


def names(text: str) -> list[str]:
    """Names with commas between them.

    >>> names("cdfl, fedsoft")
    ['cdfl', 'fedsoft']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def overview() -> str:
    """All experiments, and the rows of each."""
    lines = []
    for experiment in list_experiments():
        every = dict.fromkeys(cell.scenario for cell in experiment.cells(1))
        lines.append(f"{experiment.name:12} {experiment.title}")
        rows = [row for row in every if row not in experiment.on_request]
        lines += [f"{'':12} --rows {','.join(rows)}"] if rows else []
        more = ",".join(row for row in every if row in experiment.on_request)
        lines += [f"{'':12} only if asked for: --rows {more}"] if more else []
    return "\n".join(lines)
