"""Overhead of FedSoft-Async relative to CDFL.

Claim: the paper's (section 5.2, figure 6): a client downloads one model instead of K, and does not evaluate all K.
Settings: `paper-reading`; the runs of Table 1. Bytes: encoded models (float32, safetensors) with headers. FLOPs: those
of one sample, times the samples of each run.
Cost: none beyond Table 1.

    cdfl paper overhead --rows fashion-mnist-2,fashion-mnist-4 --trials 1
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from cdfl.core import Layout
from cdfl.data.sources import SOURCES
from cdfl.models import build
from cdfl.scenarios import load_scenario
from cdfl.sim.flops import Flops, count_flops
from cdfl.wire import ReplyHead, encode_model
from experiments.harness import EVERY_ROW, Experiment, Results, Row, RunKey, StoredRun, row_keys
from experiments.harness.figure_style import COLORS, PAGE, figure, legend, rows_below
from experiments.harness.tables import provenance, stand_ins, table

SHAPES = {"fashion-mnist": (1, 28, 28), "cifar-10": (3, 32, 32), "digits": (1, 8, 8)}  # of data that are not resized
NOTE = "CDFL's server evaluates each upload and each moved cluster on the proxy sets; FedSoft-Async's does not.\n"


class Costs(NamedTuple):
    """The costs of one network."""

    weights: int  # P
    body: int  # bytes of an encoded model
    flops: Flops  # of one sample


def costs(scenario: Mapping[str, Any]) -> Costs:
    """Return the costs of the network of a scenario, given as a result file stores it."""
    clusters = scenario["clusters"]
    names = clusters.get("sources") or [clusters["source"]]
    shape = clusters["shape"] or SHAPES[names[0]]
    num_classes = max(SOURCES[part].num_classes for name in names for part in name.split("+"))
    return _costs(scenario["model"], tuple(shape), num_classes)


@lru_cache(maxsize=16)
def _costs(model: str, shape: tuple[int, int, int], num_classes: int) -> Costs:
    with torch.device("meta"):  # shapes only: neither counts nor lengths depend on the numbers
        network = build(model, shape, num_classes)
        inputs = torch.zeros(2, *shape)
    layout = Layout.of(network)
    return Costs(layout.size, len(encode_model(torch.zeros(layout.size), layout)), count_flops(network, inputs))


def reply_bytes(costs: Costs, num_clusters: int) -> int:
    """Return the bytes of a reply of CDFL: the model, and headers with all digits."""
    shares = (1 / 3,) * num_clusters
    headers = ReplyHead(1000, shares, shares, staleness=100, outcome="applied").to_headers()
    return costs.body + sum(len(f"{name}: {value}\r\n") for name, value in headers.items())


def run_keys(trials: int) -> list[RunKey]:
    """Return the two algorithms that are compared."""
    return row_keys({"paper-reading": ["cdfl", "fedsoft"]}, trials)


@dataclass(frozen=True)
class Overhead:
    """The costs of one row."""

    row: Row
    used: list[StoredRun]  # trials of CDFL and FedSoft-Async with the same seeds
    upload: int  # bytes
    reply: int
    models: int  # bytes of the K models that FedSoft-Async sends
    flops: float  # of a client, for an upload
    rival_flops: float
    server_flops: float

    @property
    def download(self) -> float:
        """FedSoft-Async's download, relative to CDFL's."""
        return self.models / self.reply

    @property
    def computation(self) -> float:
        """FedSoft-Async's computation on the client, relative to CDFL's."""
        return self.rival_flops / self.flops


def overheads(results: Results) -> list[Overhead]:
    """Return all rows of which both algorithms have trials with the same seeds."""
    return [found for row in EVERY_ROW if (found := _overhead(results, row)) is not None]


def _overhead(results: Results, row: Row) -> Overhead | None:
    ours, theirs = (
        {kept.key.seed: kept for kept in results.trials(row.scenario, "paper-reading", name)}
        for name in ("cdfl", "fedsoft")
    )
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    if not pairs:
        return None
    cost = costs(pairs[0][0].record["config"]["scenario"])
    num_clusters = load_scenario(row.scenario).num_clusters
    return Overhead(
        row,
        used=[kept for pair in pairs for kept in pair],
        upload=cost.body,
        reply=reply_bytes(cost, num_clusters),
        models=num_clusters * cost.body,
        flops=fmean(our.end["client_flops"] / our.end["uploads"] for our, _ in pairs),
        rival_flops=fmean(their.end["client_flops"] / their.end["uploads"] for _, their in pairs),
        server_flops=fmean(our.end["server_flops"] / our.end["uploads"] for our, _ in pairs),
    )


def report(results: Results) -> str:
    """Return bytes and FLOPs of every row."""
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
    used = [kept for one in found for kept in one.used]
    return "\n".join([table(header, rows), NOTE, *stand_ins(one.row for one in found), provenance(used)])


def draw(results: Results, folder: Path) -> list[str]:
    """Draw bars over rows, with CDFL as the line at 1."""
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


EXPERIMENT = Experiment(
    "overhead", __doc__, report, draw, run_keys, trials=5, smoke_rows=("fashion-mnist-2", "fashion-mnist-6")
)
