"""What the command line does: list the experiments, write the README, or run an experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.harness import Experiment, Results, RunKey
from experiments.harness.experiment import Tell
from experiments.harness.runner import RunOptions, UnfinishedError, run_missing
from experiments.pages import write_readme, write_report
from experiments.registry import EXPERIMENTS, find_experiment

SMOKE_TRIALS = 1
FOLDER, SMOKE_FOLDER = Path("runs/paper"), Path("runs/paper-smoke")
KINDS = {"--rows": "scenario", "--presets": "preset", "--algorithms": "algorithm"}  # option -> field of a `RunKey`


@dataclass(frozen=True)
class RunFilter:
    """Selects some runs of an experiment; an empty field selects all."""

    rows: Sequence[str] = ()  # scenarios
    presets: Sequence[str] = ()
    algorithms: Sequence[str] = ()

    def of(self, keys: Sequence[RunKey]) -> list[RunKey]:
        """Return the chosen runs; refuse a name that none of them has."""
        where = "in this experiment"
        for option, names in self.options.items():
            kind = KINDS[option]
            known = list(dict.fromkeys(getattr(key, kind) for key in keys))
            for name in names:
                if name not in known:
                    raise ValueError(f"there is no {kind} {name!r} {where}; there are {', '.join(known)}")
            if names:
                keys = [key for key in keys if getattr(key, kind) in names]
                where += f" with {option} {','.join(names)}"
        return list(keys)

    @property
    def options(self) -> dict[str, Sequence[str]]:
        """The choices by the names of the command line."""
        return {"--rows": self.rows, "--presets": self.presets, "--algorithms": self.algorithms}


EVERYTHING = RunFilter()


def execute(
    name: str,
    options: RunOptions,
    out: Path | None,
    trials: int | None,
    only: RunFilter,
    add: Sequence[Path],
    tell: Tell = print,
) -> None:
    """Run a command; refuse options that it does not use.

    `--data-dir` may come from the environment, so it is never refused.
    """
    unused = _choices(options, trials, only) | {
        "--out": out,
        "--smoke": options.smoke,
        "--device": options.device != "auto",
    }
    if name == "list":
        _refuse("list shows every experiment with all its rows", unused | {"--add": add})
        tell(overview())
    elif name == "readme":
        _refuse("readme runs nothing: it writes the README from experiments/results", unused)
        write_readme(tell, add)
    else:
        _refuse("only readme copies results", {"--add": add})
        run_experiment(name, options, out, trials, only, tell)


def run_experiment(
    name: str,
    options: RunOptions,
    out: Path | None = None,
    trials: int | None = None,
    only: RunFilter = EVERYTHING,
    tell: Tell = print,
) -> Path:
    """Run what is missing of an experiment, write its results, tables and pictures; return the folder."""
    experiment = find_experiment(name)
    folder = out or (SMOKE_FOLDER if options.smoke else FOLDER)
    results = Results(folder)
    results.expect(smoke=options.smoke)
    try:
        if experiment.measure is not None:
            why = f"{name} is one computation on the CPU, without rows, presets, algorithms or trials to choose from"
            _refuse(why, _choices(options, trials, only) | {"--device": options.device not in ("auto", "cpu")})
            experiment.measure(results, options.smoke, tell)
        else:
            run_missing(keys_of(experiment, options, trials, only), results, options, tell)
    except (KeyboardInterrupt, UnfinishedError) as error:
        if isinstance(error, KeyboardInterrupt):
            tell("repeat the command to run what is missing")
        write_report(experiment, results, tell)
        raise
    write_report(experiment, results, tell)
    return folder


def keys_of(experiment: Experiment, options: RunOptions, trials: int | None, only: RunFilter) -> list[RunKey]:
    """Return the runs of an experiment that a command asks for."""
    if trials is None:
        trials = SMOKE_TRIALS if options.smoke else experiment.trials
    keys = list(experiment.run_keys(trials))
    if options.smoke and not only.rows:
        keys = RunFilter(rows=experiment.smoke_rows).of(keys)
    elif not only.rows:
        keys = [key for key in keys if key.scenario not in experiment.on_request]
    return only.of(keys)


def _choices(options: RunOptions, trials: int | None, only: RunFilter) -> dict[str, object]:
    """Return the options that experiments without run keys do not use; a value is true if the option was given."""
    return {
        **only.options,
        "--trials": trials,
        "--together": options.together,
        "--processes": options.processes != 1,
        "--precision": options.precision != "auto",
    }


def _refuse(why: str, options: Mapping[str, object]) -> None:
    unused = [option for option, value in options.items() if value]
    if unused:
        raise ValueError(f"{why}; omit {', '.join(unused)}")


def overview() -> str:
    """Return all experiments, with the rows of each."""
    lines = []
    for experiment in EXPERIMENTS.values():
        every = dict.fromkeys(key.scenario for key in experiment.run_keys(1))
        lines.append(f"{experiment.name:14} {experiment.title}")
        rows = [row for row in every if row not in experiment.on_request]
        lines += [f"{'':14} --rows {','.join(rows)}"] if rows else []
        more = ",".join(row for row in every if row in experiment.on_request)
        lines += [f"{'':14} on request: --rows {more}"] if more else []
    return "\n".join(lines)
