"""Compare algorithms on one problem over several seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, Unpack

from cdfl.algorithms import ALGORITHMS, Algorithm
from cdfl.api.runs import Run, frame, html_table, simulate
from cdfl.argument_checks import did_you_mean
from cdfl.core.settings import SettingValues, with_settings
from cdfl.on_ray.connection import RayEngine, find_engine
from cdfl.problems import Problem
from cdfl.report import comparison
from cdfl.run_events import metric_label, score_text
from cdfl.run_folder import RunFolder
from cdfl.run_series import SHORT_WORDS
from cdfl.sim.engine_choice import Precision
from cdfl.sim.runner import check_options, configure
from cdfl.sim.time_models import TimeModel
from cdfl.upload_policies import Policy

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

Column = Literal["held", "before", "after", "served", "cluster", "divergence"]
COLUMNS: tuple[Column, ...] = ("held", "before", "after", "served", "cluster", "divergence")
NOT_IN_FRAMES = ("more", "routed", "staleness")


@dataclass(frozen=True)
class Difference:
    """By how much one algorithm is better than another, seed by seed; negative if it is worse."""

    each: dict[int, float]  # by seed

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.each.values())

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds; 0 for one seed."""
        return stdev(self.each.values()) if len(self.each) > 1 else 0.0

    @property
    def wins(self) -> int:
        """The number of seeds with which it is better."""
        return sum(value > 0 for value in self.each.values())

    def __repr__(self) -> str:
        amount = score_text(abs(self.mean), self.deviation)
        words = f"{'better' if self.mean >= 0 else 'worse'} by {amount} on average"
        return f"Difference({words}; better with {self.wins} of {len(self.each)} seeds)"


class Comparison:
    """Runs of several algorithms with several seeds on one problem.

    Make one with `cdfl.compare`, or read one with `cdfl.load`.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        if not runs:
            raise ValueError("a comparison needs at least one run")
        _check_alike(runs)
        self.runs = sorted(runs, key=lambda run: run.seed)

    @property
    def name(self) -> str:
        """The name of the problem."""
        return self.runs[0].name

    @property
    def algorithms(self) -> list[str]:
        """The algorithms, in the order in which they were given."""
        return list(dict.fromkeys(run.algorithm for run in self.runs))

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return sorted({run.seed for run in self.runs})

    @property
    def metrics(self) -> dict[str, bool]:
        """The metrics by name, each with whether higher is better; the first is the main one."""
        return self.runs[0].metrics

    @property
    def metric(self) -> str:
        """The name of the main metric."""
        return next(iter(self.metrics))

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the main metric is better."""
        return self.metrics[self.metric]

    def values(self, algorithm: str, column: Column = "after", metric: str | None = None) -> dict[int, float]:
        """Return one number of each run of an algorithm, by seed; by the main metric unless another is named."""
        for name, given, known in (("algorithm", algorithm, self.algorithms), ("column", column, COLUMNS)):
            if given not in known:
                there = f"there are {', '.join(known)}{did_you_mean(given, known)}"
                raise ValueError(f"there is no {name} {given!r}; {there}")
        self._is_higher_better(metric)
        found = {run.seed: run._score(column, metric) for run in self.runs if run.algorithm == algorithm}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, algorithm: str, column: Column = "after", metric: str | None = None) -> float:
        """Return the mean over seeds."""
        return fmean(self.values(algorithm, column, metric).values())

    def deviation(self, algorithm: str, column: Column = "after", metric: str | None = None) -> float:
        """Return the standard deviation over seeds; 0 for one seed."""
        values = list(self.values(algorithm, column, metric).values())
        return stdev(values) if len(values) > 1 else 0.0

    def difference(self, one: str, other: str, column: Column = "after", metric: str | None = None) -> Difference:
        """Return by how much `one` is better than `other`, seed by seed: where lower is better, signs are turned."""
        ours, theirs = self.values(one, column, metric), self.values(other, column, metric)
        sign = 1 if self._is_higher_better(metric) and column != "divergence" else -1
        return Difference({seed: sign * (ours[seed] - theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())})

    def _is_higher_better(self, metric: str | None) -> bool:
        if metric is not None and metric not in self.metrics:
            there = f"there are {', '.join(self.metrics)}{did_you_mean(metric, self.metrics)}"
            raise ValueError(f"there is no metric {metric!r}; {there}")
        return self.metrics[metric or self.metric]

    @property
    def best(self) -> str:
        """The algorithm with the best mean score after the reply."""
        sign = 1 if self.higher_is_better else -1
        return max(self.algorithms, key=lambda name: sign * self.mean(name))

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each run."""
        rows: list[dict[str, Any]] = []
        for run in self.runs:
            more = {
                f"{metric} {name}": score for metric, own in run.summary.more.items() for name, score in own.items()
            }
            more |= {f"routed {name}": score for name, score in run.summary.routed.items()}
            summary = {name: value for name, value in vars(run.summary).items() if name not in NOT_IN_FRAMES}
            rows.append({"algorithm": run.algorithm, "seed": run.seed, "metric": self.metric, **summary, **more})
        return frame(rows)

    def plot(self, metric: str | None = None) -> Figure:
        """Return a matplotlib figure: how good the replies are, a curve for each algorithm with a band over seeds.

        `metric` is the main one unless it is named.
        """
        return comparison([run.series.by(metric) for run in self.runs])

    def save(self, folder: Path | str) -> Path:
        """Write a folder for each run into a new folder. `cdfl.load` reads it."""
        path = Path(folder)
        if path.exists() and any(path.iterdir()):
            raise FileExistsError(f"{path} is not empty; name a new folder")
        for run in self.runs:
            run.save(path / f"{run.algorithm}-{run.seed}")
        return path

    def __repr__(self) -> str:
        lines = []
        for metric in self.metrics:
            table = self._table(metric)
            widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
            lines.append(self._title(metric))
            lines += [
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return a table for each metric, for notebooks."""
        tables = {self._title(metric): self._table(metric) for metric in self.metrics}
        return "".join(html_table(title, head, rows) for title, (head, *rows) in tables.items())

    def _title(self, metric: str) -> str:
        label = metric_label(f"held-out {metric}", higher_is_better=self._is_higher_better(metric))
        return f"{self.name}, {len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}: mean and deviation of {label}"

    def _table(self, metric: str) -> list[list[str]]:
        """Return one row an algorithm, after the titles; what experts serve only if a run has experts."""
        columns = {
            name: SHORT_WORDS[name]
            for name in COLUMNS
            if (name != "served" or any(run.summary.routed for run in self.runs))
            and (name != "divergence" or metric == self.metric)  # it is of no metric
        }
        rows = [[name, *(self._cell(name, column, metric) for column in columns)] for name in self.algorithms]
        return [["algorithm", *columns.values()], *rows]

    def _cell(self, name: str, column: Column, metric: str) -> str:
        values = self.values(name, column, metric)
        if not values:
            return "-"
        spread = self.deviation(name, column, metric) if len(values) > 1 else None
        return score_text(self.mean(name, column, metric), spread)


def _check_alike(runs: Sequence[Run]) -> None:
    """Raise ValueError unless runs have the same problem and metrics, and each algorithm has each seed once."""
    first = runs[0]
    for run in runs:
        if run.name != first.name:
            raise ValueError(f"the runs are of {first.name} and {run.name}; expected one problem")
        if list(run.metrics.items()) != list(first.metrics.items()):
            raise ValueError(
                f"the runs are scored by {', '.join(first.metrics)} and by {', '.join(run.metrics)}; expected the same "
                "metrics in the same order"
            )
    same = Counter((run.algorithm, run.seed) for run in runs)
    (algorithm, seed), count = same.most_common(1)[0]
    if count > 1:
        raise ValueError(f"there are {count} runs of {algorithm} with seed {seed}; expected one")


@with_settings
def compare(
    problem: str | Path | Problem = "digits-4",
    *,
    algorithms: str | Iterable[str | type[Algorithm]] = ("cdfl", "local", "fedasync"),
    seeds: int | Iterable[int] = 3,
    num_clients: int | None = None,
    num_uploads: int | None = None,
    preset: str = "default",
    time_model: str | TimeModel | None = None,
    policy: str | Policy | None = None,
    device: str = "auto",
    precision: Precision | Literal["auto"] = "auto",
    validation: bool = False,
    engine: str | RayEngine = "local",
    progress: bool | None = None,
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    **settings: Unpack[SettingValues],
) -> Comparison:
    """Run several algorithms with several seeds on one problem; clients of all runs train in common stacks.

    Args:
        problem: A `cdfl.Problem`, the name of a scenario, or a .py or .toml file.
        algorithms: Names or classes; "all" for all of cdfl's.
        seeds: The seeds, or how many: 3 is 0, 1 and 2.
        num_clients: As in `cdfl.run`.
        num_uploads: As in `cdfl.run`.
        preset: As in `cdfl.run`.
        time_model: As in `cdfl.run`.
        policy: As in `cdfl.run`.
        device: As in `cdfl.run`.
        precision: As in `cdfl.run`.
        validation: As in `cdfl.run`.
        engine: As in `cdfl.run`; on a cluster, each worker does whole runs.
        progress: As in `cdfl.run`.
        out: A new folder for the runs.
        data_dir: As in `cdfl.run`.
        **settings: As in `cdfl.run`.

    """
    check_options(settings, compare)
    cluster = find_engine(engine)
    names = (
        list(ALGORITHMS) if algorithms == "all" else [algorithms] if isinstance(algorithms, str) else list(algorithms)
    )
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    configs = [
        configure(
            problem,
            algorithm=name,
            seed=seed,
            num_clients=num_clients,
            num_uploads=num_uploads,
            preset=preset,
            time_model=time_model,
            policy=policy,
            device=device,
            precision=precision,
            validation=validation,
            **settings,
        )
        for seed in numbers
        for name in names
    ]
    if not configs:
        raise ValueError(f"algorithms are {names} and seeds {numbers}; expected at least one of each")
    folders = None
    if out is not None:
        folders = [RunFolder.create(Path(out) / f"{own.algorithm}-{own.seed}", own.to_json()) for own in configs]
    return Comparison(simulate(configs, progress, folders, data_dir, personal=False, engine=cluster))
