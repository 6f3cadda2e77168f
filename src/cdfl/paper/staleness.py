"""How stale uploads are under a time model, and the picture of it."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from cdfl.data.randomness import generator
from cdfl.paper.cells import resolve
from cdfl.paper.figures import COLORS
from cdfl.paper.results import Kept


def staleness(kept: Kept) -> list[int]:
    """How stale every upload of a run was.

    Results keep this in bins too wide for a picture. Who uploads when is decided by time model and seed alone, so it is
    asked again: no model is needed.
    """
    config = resolve(kept.cell, "cpu", smoke=kept.record["smoke"])
    ticks = config.time_model.ticks(config.scenario.num_clients, generator(config.seed, "turns"))
    turns = (tick.client for tick in ticks if tick.kind == "turn")
    last = dict.fromkeys(range(config.scenario.num_clients), 0)
    ages = []
    for epoch, client in enumerate(islice(turns, config.scenario.num_uploads), start=1):
        ages.append(epoch - last[client])
        last[client] = epoch
    return ages


def histogram(axes: Any, ages: np.ndarray) -> None:
    """Ten bins a decade, but none narrower than an epoch: below 6 each staleness has its own."""
    edges = np.unique((10 ** np.arange(0, np.log10(ages.max()) + 0.2, 0.1)).round())
    counts, _ = np.histogram(ages, edges)
    axes.bar(edges[:-1], counts / len(ages), np.diff(edges), align="edge", color=COLORS["cdfl"])
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set(xscale="log", xlabel="staleness of an upload")
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.minorticks_off()


def limits(axes: Any, kept: Kept, tried: Iterable[float]) -> None:
    """Where an upload begins to count less, here and in other pairs (a, b); and where it no longer counts."""
    told = kept.record["config"]["settings"]
    grace, oldest = told["staleness_grace"], told["max_staleness"]
    others = sorted(set(tried) - {grace})
    axes.axvline(grace, color="black", lw=0.8, label=f"b = {grace:g}")
    for b in others:
        axes.axvline(b, color="black", lw=0.8, ls=":", label=f"b = {', '.join(map(str, others))}: tried")
    axes.axvline(oldest, color="black", lw=0.8, ls="--", label=f"tau_0 = {oldest}: older ones move nothing")
