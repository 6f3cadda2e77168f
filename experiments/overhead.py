"""Overhead: what FedSoft-Async costs a client, relative to CDFL = 1.

Claim: the paper's (section 5.2, figure 6), as it follows from the algorithms: K models come down instead of one, and K
evaluations of the local data are added to its training.
Settings: `paper-reading`; the runs of Table 1. Bytes are measured: models and replies are encoded as client and server
do it (float32, safetensors, headers of CDFL's reply included). FLOPs are counted: those of one sample forward and
backward through the network, times the samples that went through it in each run.
Machine: any, these are counts. Cost: none beyond Table 1.

    cdfl paper overhead --rows fashion-mnist-2,fashion-mnist-4 --trials 1
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from cdfl.paper import EVERY_ROW, Cell, Kept, Results, Row, row_cells
from cdfl.paper.costs import Costs, costs, reply_bytes
from cdfl.paper.figures import COLORS, PAGE, figure, legend, rows_below
from cdfl.paper.rows import footnote
from cdfl.paper.tables import provenance, table
from cdfl.scenarios import load_scenario

NUMBER, TRIALS = 4, 5
SMOKE_ROWS = ("fashion-mnist-2", "fashion-mnist-6")
PASSES_BEFORE = 3  # runs that do not tell how many samples were trained took a training for so many forward passes


def cells(trials: int) -> list[Cell]:
    """The two that are compared."""
    return row_cells({"paper-reading": ["cdfl", "fedsoft"]}, trials)


@dataclass(frozen=True)
class Overhead:
    """What was found for a row."""

    row: Row
    used: list[Kept]  # trials of CDFL and of FedSoft-Async, with the same seeds
    upload: int  # bytes
    reply: int
    models: int  # what FedSoft-Async sends instead: bytes of K models
    flops: float  # of a client, for an upload
    rival_flops: float
    server_flops: float

    @property
    def download(self) -> float:
        """FedSoft-Async's, relative to CDFL's."""
        return self.models / self.reply

    @property
    def computation(self) -> float:
        """FedSoft-Async's, relative to CDFL's."""
        return self.rival_flops / self.flops


def overheads(results: Results) -> list[Overhead]:
    """All rows of which both have trials with the same seeds."""
    return [found for row in EVERY_ROW if (found := _overhead(results, row)) is not None]


def _overhead(results: Results, row: Row) -> Overhead | None:
    ours, theirs = (
        {kept.cell.seed: kept for kept in results.trials(row.scenario, "paper-reading", name)}
        for name in ("cdfl", "fedsoft")
    )
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    if not pairs:
        return None
    cost = costs(pairs[0][0].record["config"]["scenario"])
    num_clusters = load_scenario(row.scenario).num_clusters
    flops = [_client_flops(our, their, cost) for our, their in pairs]
    return Overhead(
        row,
        used=[kept for pair in pairs for kept in pair],
        upload=cost.body,
        reply=reply_bytes(cost, num_clusters),
        models=num_clusters * cost.body,
        flops=fmean(our for our, _ in flops),
        rival_flops=fmean(their for _, their in flops),
        server_flops=fmean(our.end["server_flops"] / our.end["uploads"] for our, _ in pairs),
    )


def _client_flops(our: Kept, their: Kept, cost: Costs) -> tuple[float, float]:
    """For an upload: what a client of CDFL computes, which only trains, and one of FedSoft-Async.

    Both train on the same samples, as the seed decides who trains when on what. Earlier runs did not tell their number;
    there it is in the passes that CDFL's clients were counted.
    """
    before = PASSES_BEFORE * cost.flops.forward
    trained = our.end.get("trained") or our.end["client_flops"] / before
    tried = their.end["client_flops"] - trained * (cost.flops.training if their.end.get("trained") else before)
    training = trained * cost.flops.training
    return training / our.end["uploads"], (training + tried) / their.end["uploads"]


def report(results: Results) -> str:
    """Ratios a row, and what the server pays for it."""
    found = overheads(results)
    rows = [
        [
            one.row.title,
            str(len(one.used) // 2),
            *(f"{size:,}" for size in (one.upload, one.reply, one.models)),
            f"{one.download:.2f}",
            f"{one.computation:.2f}",
            *(f"{flops / 1e9:,.0f}" for flops in (one.flops, one.rival_flops, one.server_flops)),
        ]
        for one in found
    ]
    header = ["row", "trials", "bytes: an upload", "reply of CDFL", "K models of FedSoft-Async"]
    header += ["download, FedSoft-Async / CDFL", "client computation, FedSoft-Async / CDFL"]
    header += ["GFLOP an upload: client, CDFL", "client, FedSoft-Async", "server, CDFL"]
    words = "What the client saves, the server spends: CDFL evaluates each upload, and each cluster that moved, on the "
    words += "proxy sets. FedSoft-Async's server does no such work.\n"
    used = [kept for one in found for kept in one.used]
    if any("trained" not in kept.end for kept in used):
        words += (
            "\nRuns whose files do not tell the number of trained samples counted each as three forward passes; the "
        )
        words += "number follows from that, and is counted here with what one sample takes forward and backward.\n"
    return "\n".join([table(header, rows), words, *footnote(one.row for one in found), provenance(used)])


def verdict(results: Results) -> str:
    """The range of both ratios."""
    found = overheads(results)
    if not found:
        return "Overheads have not been measured yet.\n"
    down, computed = ([getattr(one, name) for one in found] for name in ("download", "computation"))
    return (
        f"FedSoft-Async costs a client {min(down):.2f} to {max(down):.2f} times the download (encoded bytes, measured) "
        f"and {min(computed):.2f} to {max(computed):.2f} times the computation (FLOPs, counted) of CDFL, over "
        f"{len(found)} rows.\n"
    )


def draw(results: Results, folder: Path) -> list[str]:
    """Bars over rows, with CDFL as the line at 1."""
    found = overheads(results)
    if not found:
        return []
    with figure(folder, "overhead", PAGE, 2.3, smoke=results.smoke) as axes:
        for place, (cost, filled) in enumerate({"download": True, "computation": False}.items()):
            at = np.arange(len(found)) + 0.36 * (place - 0.5)
            bars = [getattr(one, cost) for one in found]
            color = {"edgecolor": COLORS["fedsoft"], "facecolor": COLORS["fedsoft"] if filled else "white"}
            axes.bar(at, bars, 0.3, label=f"{cost}, FedSoft-Async", **color)
        axes.axhline(1, color=COLORS["cdfl"], label="CDFL")
        rows_below(axes, [one.row for one in found])
        axes.set(ylabel="FedSoft-Async / CDFL")
        legend(axes, ncols=3)
    return ["overhead"]
