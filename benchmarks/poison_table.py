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
    "copies": "copies of the clusters, in turn",
    "two-steps": "`u + 1000 (v - u)` five times, then `u - 10 (v - u)`",
    "slow-drift": "`u` and a step towards zero, 1.4 times the norm of the update",
}


def attack_table(group: str) -> str:
    """Return what each attack does in one group, without and with the guard, and what is lost."""
    rows = read("poison", {"groups": {}})["groups"].get(group, {"rows": []})["rows"]
    lines = [
        "| attackers upload | clusters, all accepted | clusters, guarded | points lost | honest clients, guarded "
        "| points lost | poison rejected | honest uploads rejected | shrunk |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in [name for name in MEANING if any(row["attack"] == name for row in rows)]:
        free, guarded = _pair(rows, name)
        _, clean = _pair(rows, CLEAN)
        cells = [f"{fmean(free['clusters']):.3f}"]
        for column in ("clusters", "after"):
            lost = [100 * (one - other) for one, other in zip(clean[column], guarded[column], strict=True)]
            cells += [_spread(guarded[column]), "-" if name == CLEAN else f"{fmean(lost):.2f} ± {stdev(lost):.2f}"]
        cells += [_share(guarded[column]) for column in ("poison_rejected", "honest_rejected", "honest_shrunk")]
        lines.append(f"| {MEANING[name]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def drift_table() -> str:
    """Return what the guard costs where all clients are honest."""
    lines = [
        "| all clients are honest | seeds | uploads rejected | rejected after a change of the main cluster | shrunk "
        "| clusters, all accepted | clusters, guarded | clients, all accepted | clients, guarded |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, group in read("poison", {"groups": {}})["groups"].items():
        if not any(row["attack"] == CLEAN for row in group["rows"]):
            continue
        free, guarded = _pair(group["rows"], CLEAN)
        cells = [str(len(guarded["clusters"]))]
        cells += [_share(guarded[column]) for column in ("honest_rejected", "changed_rejected", "honest_shrunk")]
        cells += [_spread(run[column]) for column in ("clusters", "after") for run in (free, guarded)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _pair(rows: list[dict[str, Any]], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = {row["guarded"]: row for row in rows if row["attack"] == name}
    return found[False], found[True]


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def _share(values: list[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{fmean(found):.1%} ± {stdev(found):.1%}" if found else "-"
