"""Theorem 1: the gradient over S_k updates of a cluster, against the bound with measured constants.

Claim: the bound (section 4.3 of the paper, proof in appendix B) is vacuous (Assumption 3 alone grants more), and the
condition on rho that it rests on is never met by local training. Where the gradient goes, and where F_k rises, is
measured beside it.
Settings: softmax regression with a quadratic term on 8x8 digits in 4 rotations, 20 clients of which 4 are active at a
time, 5 to 10 full gradient steps of 1 / (L + rho), beta_0, a and b as printed, `min` bars; several rho.
Machine: one CPU core, float64. Cost: about three minutes.

    cdfl paper theorem1
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cdfl.core import Settings, paper
BEFORE = {"cluster_step": "towards"}
from cdfl.jsonable import jsonable
from cdfl.paper import Results
from cdfl.paper.convex import Regression
from cdfl.paper.figures import PAGE, figure, legend
from cdfl.paper.machine import commit, machine
from cdfl.paper.tables import table
from cdfl.paper.theorem import TIME_MODEL, Steps, needed_rho, summarize, trace_run
from cdfl.paper.theorem_words import Measured, in_short, listed, words
from cdfl.record import versions
from cdfl.scenarios import load_scenario

NUMBER = 6
SCENARIO, DATA_SEED = "digits-4", 0
RHOS = (0.01, 0.1, 0.5, 1.0, 10.0)
PENALTY = 0.01
FEWEST, MOST = 5, 10  # local steps: H_min, H_max
CLIENTS, UPLOADS, SEEDS = 20, 600, 3
SMOKE_UPLOADS, SMOKE_SEEDS, SMOKE_RHOS = 60, 1, 2
EPSILON = 1.0  # the theorem wants it small; the bound falls as it grows, so this is kind to it
HYPERPARAMS = paper("fashion-mnist-4").replace(
    loss_bar="min",
    gap_bar="min",
    distance_bar="min",
    max_staleness=CLIENTS,
    cluster_step="towards",  # these three are what the theorem is about, whatever a preset says
    rate_floor="mean",
    staleness_hinge="paper",
)
SHADES = ("#A6C8E4", "#74AFD6", "#4292C6", "#1764AB", "#08306B")  # of rho, the larger the darker


def settings(smoke: bool) -> dict[str, Any]:
    """Everything that decides what is measured for a rho, as it is stored."""
    scenario = load_scenario(SCENARIO).to_dict()
    return {
        "smoke": smoke,
        "scenario": {name: scenario[name] for name in ("name", "clusters", "drift", "sizes")},
        "data_seed": DATA_SEED,
        "penalty": PENALTY,
        "fewest": FEWEST,
        "most": MOST,
        "clients": CLIENTS,
        "time_model": jsonable(TIME_MODEL),
        "uploads": SMOKE_UPLOADS if smoke else UPLOADS,
        "seeds": SMOKE_SEEDS if smoke else SEEDS,
        "epsilon": EPSILON,
        "settings": jsonable(asdict(HYPERPARAMS)),
        "device": "cpu",
        "dtype": "float64",
    }


def measure(results: Results, smoke: bool, tell: Callable[[str], None] = print) -> None:
    """Run every rho that is not there with these settings; each is on disk before the next begins."""
    asked = settings(smoke)
    rhos = RHOS[:SMOKE_RHOS] if smoke else RHOS
    done = _found(results, asked)
    missing = [rho for rho in rhos if str(rho) not in done]
    tell(f"{len(rhos)} rho, {len(rhos) - len(missing)} of them are there")
    if not missing:
        return
    problem = Regression(load_scenario(SCENARIO).federation(seed=DATA_SEED), PENALTY)
    optima = torch.stack([problem.optimum(k) for k in range(problem.num_clusters)])
    for number, rho in enumerate(missing, start=1):
        begun = time.monotonic()
        measured = _measure(problem, optima, rho, asked, tell)
        seconds = round(time.monotonic() - begun, 1)
        header = {"machine": machine() | versions(), "commit": commit(), "seconds": seconds}
        done[str(rho)] = header | measured
        results.add_measured("theorem1", asked, rho=done)
        tell(f"{number} of {len(missing)}: rho {rho:g}, {seconds:.0f} s")


def _found(results: Results, asked: dict[str, Any]) -> dict[str, Any]:
    """What is there of each rho, if it is of the settings that are asked for."""
    stored = results.measured("theorem1")
    return dict(stored["rho"]) if stored is not None and _is_of(stored, asked) else {}


def _is_of(stored: Mapping[str, Any], asked: dict[str, Any]) -> bool:
    """Whether it was run with these settings; a setting that did not exist then changed nothing."""
    then = stored["settings"]
    settings = jsonable(asdict(Settings())) | BEFORE | then.get("settings", {})
    return {**then, "settings": settings} == asked


def _measure(
    problem: Regression, optima: Tensor, rho: float, asked: dict[str, Any], tell: Callable[[str], None]
) -> dict[str, Any]:
    steepest = max(problem.smoothness(k) for k in range(problem.num_clusters))
    steps = Steps(FEWEST, MOST, 1 / (steepest + rho), rho)
    traces = []
    for seed in range(asked["seeds"]):
        tell(f"  rho {rho:g}: {asked['uploads']} uploads with seed {seed}")
        traces.append(trace_run(problem, steps, HYPERPARAMS, CLIENTS, asked["uploads"], seed))
    return summarize(problem, optima, steps, traces, HYPERPARAMS.base_rate, EPSILON)


def report(results: Results) -> str:
    """The bound beside what was measured, and the condition on rho beside the distances that occur."""
    found = _results(results)
    if not found:
        return "Nothing of it has been run yet.\n"
    bounds, conditions = [], []
    for one in found:
        numbers = [*one.ends, one.mean("measured"), one["v1"], one.bound, *one.terms.values()]
        shown = [f"{value:.2g}" for value in numbers]
        bounds.append([f"{one.rho:g}", f"{one.mean('updates'):.0f}", *shown, f"{one.excess:,.0f}"])
        needs = [f"{one[name]:.2g}" for name in NEEDS]
        shares = [f"{one[name]:.0%}" for name in ("at_start", "aligned")]
        conditions.append([f"{one.rho:g}", *needs, *shares, f"{one['least_alignment']:.2f}"])
    terms = [f"term: {name}" for name in found[0].terms]
    header = ["rho", "S_k", "gradient, first", "last", "mean", "V_1", "bound", *terms, "bound / V_1"]
    asked = ["rho", *NEEDS.values(), "steps at v = u", "steps aligned", "least alignment"]
    tables = [table(header, bounds), table(asked, conditions)]
    return "\n".join([MEANING, *tables, words(found, EPSILON), _line(found, results)])


NEEDS = {
    "largest_distance": "largest distance",
    "limit": "sqrt(V_1) / rho",
    "needed_at_largest": "rho needed there",
    "needed_at_median": "at the median distance",
}
MEANING = """\
*Gradient*: squared norm of the gradient of F_k at the models of clients in training, mean over clusters; over the first
and the last quarter of S_k updates, and over all. *V_1*: the largest squared gradient seen. *Aligned*: steps at which
the gradients of J_k and J_m do not point apart.
"""


def verdict(results: Results) -> str:
    """How far the bound and the condition are from what happens."""
    found = _results(results)
    return in_short(found) if found else "Theorem 1 has not been looked at yet.\n"


def _line(found: Sequence[Measured], results: Results) -> str:
    """Where the numbers come from."""
    asked = settings(results.smoke)
    machines = {f"{on['cpu']}, torch {on['torch']}, {on['date']}" for on in (one["machine"] for one in found)}
    commits = {str(one["commit"]) for one in found}
    there = [one.rho for one in found]
    missing = [f"{rho:g}" for rho in RHOS if rho not in there and not results.smoke]
    told = f"{asked['seeds']} seeds of {asked['uploads']:,} uploads for each rho in "
    told += f"{sum(one['seconds'] for one in found):,.0f} s; {'; '.join(sorted(machines))}; "
    told += f"commit {', '.join(sorted(commits))}."
    told += f" Not run yet: rho {listed(missing)}." if missing else ""
    return told + "\n"


def _results(results: Results) -> list[Measured]:
    """What is known of each rho; what was measured with other settings is no result."""
    found = _found(results, settings(results.smoke))
    return [Measured(rho, found[str(rho)]) for rho in RHOS if str(rho) in found]


ABOVE: Any = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0, "ncols": 3}  # a panel
ABOVE |= {"handlelength": 1.2, "handletextpad": 0.3, "columnspacing": 0.8}


def draw(results: Results, folder: Path) -> list[str]:
    """The gradient over updates; the bound above it; the rho that the theorem asks for at distances that occur."""
    found = _results(results)
    if not found:
        return []
    with figure(folder, "theorem1", PAGE, 2.3, smoke=results.smoke, ncols=3) as axes:
        for one, color in zip(found, SHADES, strict=False):
            curve = one.curve
            updates = np.arange(1, len(curve) + 1) / len(curve) * one.mean("updates")
            axes[0].plot(updates, curve, color=color, label=f"rho = {one.rho:g}")
            values = {"bound": (one.bound, "v"), "V_1": (one["v1"], "_"), "measured": (one.mean("measured"), "o")}
            marks = [axes[1].plot(f"{one.rho:g}", value, mark, color=color)[0] for value, mark in values.values()]
            largest = one["largest_distance"]
            far = np.geomspace(largest / 100, largest, 60)
            lines = axes[2].plot(far, [needed_rho(d, one["v1"], EPSILON) for d in far], color=color)
            lines += axes[2].plot([far[0], largest], [one.rho] * 2, "--", lw=0.8, color=color)
            lines += axes[2].plot(largest, one["needed_at_largest"], "o", color=color)
        axes[0].set(xlabel="updates of a cluster", ylabel="squared gradient")
        axes[0].set_ylim(bottom=0)
        axes[1].set(yscale="log", xlabel="rho", ylabel="squared gradient")
        axes[1].legend(marks, values, **ABOVE)
        axes[2].set(xscale="log", yscale="log", xlabel="distance ||v - u||", ylabel="rho")
        axes[2].legend(lines, ("needed", "used", "largest distance"), **ABOVE)
        legend(axes[0], ncols=len(found))
    return ["theorem1"]
