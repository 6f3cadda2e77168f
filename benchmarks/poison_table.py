"""The tables of what `benchmarks.poison` measured."""

from statistics import fmean, stdev
from typing import Any

from benchmarks.result_files import read

CLEAN = "clean"
MEANING = {
    CLEAN: "honest models: no attack",
    "flipped-sign": "`u - (v - u)`: the update with its sign flipped",
    "negated": "`-v`: the model with its sign flipped",
    "noise": "`u` plus Gaussian noise, 10 times the norm of the update",
    "flipped-labels": "a model trained on labels 9 - y",
}


def attack_table(group: str) -> str:
    """Return what each attack does in one group, without and with the test."""
    rows = read("poison")["groups"][group]["rows"]
    lines = [
        "| 20 % of the clients upload | clusters, all accepted | clusters, tested | honest clients, all accepted "
        "| honest clients, tested | poison rejected | honest uploads rejected |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in MEANING:
        free, tested = _pair(rows, name)
        cells = [_spread(run[column]) for column in ("clusters", "after") for run in (free, tested)]
        cells += [_share(tested["poison_rejected"]), _share(tested["honest_rejected"])]
        lines.append(f"| {MEANING[name]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def drift_table() -> str:
    """Return what the test costs where all clients are honest."""
    groups = read("poison")["groups"]
    lines = [
        "| all clients are honest | uploads rejected | rejected after a change of the main cluster "
        "| clusters, all accepted | clusters, tested | clients, all accepted | clients, tested |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, group in groups.items():
        free, tested = _pair(group["rows"], CLEAN)
        cells = [_spread(run[column]) for column in ("clusters", "after") for run in (free, tested)]
        refused = f"{_share(tested['honest_rejected'])} | {_share(tested['changed_rejected'])}"
        lines.append(f"| {name} | {refused} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _pair(rows: list[dict[str, Any]], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = {row["tested"]: row for row in rows if row["attack"] == name}
    return found[False], found[True]


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def _share(values: list[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{fmean(found):.1%} ± {stdev(found):.1%}" if found else "-"
