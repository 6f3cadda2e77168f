"""The tables of what `benchmarks.poison` measured."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from benchmarks.result_files import read

CLEAN = "clean"
MEANING = {
    CLEAN: "honest models: no attack",
    "flipped-sign": "`u - (v - u)`: the update with its sign flipped",
    "negated": "`-v`: the model with its sign flipped",
    "noise": "`u` plus Gaussian noise, 10 times the norm of the update",
    "flipped-labels": "a model trained on labels 9 - y",
    "copies": "copies of the clusters, in turn",
    "two-steps": "`u + 1000 (v - u)` five times, then `u - 10 (v - u)`",
    "slow-drift": "`u` and a step towards zero, 1.4 times the norm of the update",
    "on-and-off": "`v` twice, then `u - 1.4 (v - u)`",
    "hidden": "`u + .6 (v - u)` and a step towards zero, 1.2 times the norm of the update",
    "idle": "`u`, what they received",
    "absent": "nothing: the clients are missing",
}
Runs = list[dict[str, Any]]


def attack_table(group: str) -> str:
    """Return what each attack does in one group, without and with the guard, and what is lost."""
    runs = _runs(group)
    lines = [
        "| attackers upload | clusters, all accepted | clusters, guarded | points lost | honest clients, guarded "
        "| points lost | poison rejected | honest uploads rejected | shrunk | most of one client |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    clean = _of(runs, CLEAN, guarded=True)
    for name, meaning in MEANING.items():
        free, guarded = _of(runs, name, guarded=False), _of(runs, name, guarded=True)
        if not guarded:
            continue
        cells = [f"{fmean(_column(free, 'clusters')):.3f}" if free else "-"]
        for column in ("clusters", "after"):
            cells += [_spread(_column(guarded, column)), "-" if name == CLEAN else points(clean, guarded, column)]
        cells += [_share(_column(guarded, column)) for column in ("poison_rejected", "honest_rejected")]
        cells += [_share(_column(guarded, "honest_shrunk")), _most(guarded)]
        lines.append(f"| {meaning} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def drift_table() -> str:
    """Return what the guard costs where all clients are honest."""
    lines = [
        "| all clients are honest | seeds | clusters, all accepted | guarded | points lost | clients, all accepted "
        "| guarded | points lost | uploads rejected | after a change of the main cluster | shrunk "
        "| most of one client |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in read("poison", {"groups": {}})["groups"]:
        free, guarded = (_of(_runs(name), CLEAN, guarded=each) for each in (False, True))
        if not free or not guarded:
            continue
        cells = [str(len(guarded))]
        for column in ("clusters", "after"):
            cells += [_spread(_column(runs, column)) for runs in (free, guarded)] + [points(free, guarded, column)]
        cells += [_share(_column(guarded, column)) for column in ("honest_rejected", "changed_rejected")]
        cells += [_share(_column(guarded, "honest_shrunk")), _most(guarded)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def points(better: Runs, worse: Runs, column: str) -> str:
    """Return by how many points one column is lower, on average over seeds, with its 95% interval (Student's t)."""
    other = {run["seed"]: run[column] for run in worse}
    lost = [100 * (run[column] - other[run["seed"]]) for run in better if run["seed"] in other]
    if len(lost) < 2:
        return "-"
    half = float(student.ppf(0.975, len(lost) - 1)) * stdev(lost) / len(lost) ** 0.5
    return f"{fmean(lost):.2f} ± {half:.2f}"


def _runs(group: str) -> Runs:
    found: Runs = read("poison", {"groups": {}})["groups"].get(group, {"runs": []})["runs"]
    return found


def _of(runs: Runs, attack: str, *, guarded: bool) -> Runs:
    return [run for run in runs if run["attack"] == attack and run["guarded"] == guarded]


def _column(runs: Runs, column: str) -> list[float]:
    return [run[column] for run in runs if run[column] is not None]


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _share(values: Sequence[float]) -> str:
    return f"{fmean(values):.1%}" if values else "-"


def _most(runs: Runs) -> str:
    """Return the largest share of rejected uploads of one honest client, of its last five."""
    return f"{max(_column(runs, 'worst_rejected'), default=0):.0%}"
