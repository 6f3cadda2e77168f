"""Overhead: what FedSoft-Async costs a client, relative to CDFL = 1.

Claim: K models come down instead of one, and K evaluations of the local data are added to its training.
Settings: `paper-reading`; the runs of Table 1. Bytes are those of the models that travel; FLOPs are counted by running
the network: a training step is three forward passes, an estimate K of them.
Machine: any, these are counts. Cost: none beyond Table 1.

    cdfl paper overhead --rows fashion-mnist-2,fashion-mnist-4 --trials 1
"""

from pathlib import Path
from statistics import fmean

import numpy as np

from cdfl.paper import EVERY_ROW, Cell, Results, Row, row_cells
from cdfl.paper.figures import COLORS, PAGE, figure, legend
from cdfl.paper.rows import footnote
from cdfl.paper.tables import provenance, table

NUMBER, TRIALS = 4, 5
SMOKE_ROWS = ("fashion-mnist-2", "fashion-mnist-6")
COSTS = {"bytes_down": "download", "bytes_up": "upload", "client_flops": "client computation"}


def cells(trials: int) -> list[Cell]:
    """The two that are compared."""
    return row_cells({"paper-reading": ["cdfl", "fedsoft"]}, trials)


def ratios(results: Results, row: Row) -> dict[str, float] | None:
    """FedSoft-Async's costs over CDFL's."""
    ours, theirs = (results.trials(row.scenario, "paper-reading", name) for name in ("cdfl", "fedsoft"))
    if not ours or not theirs:
        return None
    return {cost: fmean(t.end[cost] for t in theirs) / fmean(o.end[cost] for o in ours) for cost in COSTS}


def report(results: Results) -> str:
    """Ratios a row, and what the server pays for it."""
    rows, there, used = [], [], []
    for row in EVERY_ROW:
        relative = ratios(results, row)
        if relative is None:
            continue
        trials = results.trials(row.scenario, "paper-reading")
        there.append(row)
        used += trials
        end = {name: fmean(kept.end[name] for kept in trials) for name in ("uploads", "client_flops", "server_flops")}
        each = [f"{end[name] / end['uploads'] / 1e9:,.0f}" for name in ("client_flops", "server_flops")]
        rows.append([row.title, *(f"{relative[cost]:.2f}" for cost in COSTS), *each])
    header = [
        "row",
        *(f"{name}, FedSoft-Async / CDFL" for name in COSTS.values()),
        "CDFL: GFLOP an upload, client",
        "server",
    ]
    words = "What the client saves, the server spends: CDFL evaluates each upload, and each cluster that moved, on the "
    words += "proxy sets. FedSoft-Async's server does no such work.\n"
    return "\n".join([table(header, rows), words, *footnote(there), provenance(used)])


def verdict(results: Results) -> str:
    """The range of both ratios."""
    found = [relative for row in EVERY_ROW if (relative := ratios(results, row))]
    if not found:
        return "Overheads have not been measured yet.\n"
    ranges = [
        f"{min(one[cost] for one in found):.2f} to {max(one[cost] for one in found):.2f} times the {COSTS[cost]}"
        for cost in ("bytes_down", "client_flops")
    ]
    return f"FedSoft-Async costs a client {' and '.join(ranges)} of CDFL, over {len(found)} rows.\n"


def draw(results: Results, folder: Path) -> list[str]:
    """Bars over rows, with CDFL as the line at 1."""
    rows = [(row, relative) for row in EVERY_ROW if (relative := ratios(results, row))]
    if not rows:
        return []
    with figure(folder, "overhead", PAGE, 1.9) as axes:
        for place, (cost, color) in enumerate((("bytes_down", COLORS["fedsoft"]), ("client_flops", COLORS["ifca"]))):
            at = np.arange(len(rows)) + 0.36 * (place - 0.5)
            axes.bar(at, [relative[cost] for _, relative in rows], 0.34, color=color, label=COSTS[cost])
        axes.axhline(1, color=COLORS["cdfl"], label="CDFL")
        axes.set_xticks(range(len(rows)), [row.title.replace(" (", "\n(") for row, _ in rows])
        axes.set(ylabel="FedSoft-Async / CDFL")
        legend(axes, ncols=3)
    return ["overhead"]
