"""Theorem 1: gradients against the bound with measured constants.

Claim: the bound (section 4.3, appendix B) is vacuous, and local training never meets the condition on rho.
Settings: softmax regression with a quadratic term, float64; 8x8 digits in 4 rotations; 20 clients, 4 of them active; 5
to 10 full gradient steps of 1 / (L + rho); printed beta_0, a, b; `min` bars.
Cost: 3 minutes on one CPU core.

    cdfl paper theorem1
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cdfl.core import Settings, paper
from cdfl.json_values import jsonable
from cdfl.run_folder import versions
from cdfl.scenarios import load_scenario
from experiments.harness import Experiment, Results
from experiments.harness.experiment import Tell
from experiments.harness.figure_style import PAGE, figure, legend
from experiments.harness.machine import commit, machine
from experiments.harness.softmax_problem import SoftmaxProblem
from experiments.harness.tables import NOT_RUN, table
from experiments.harness.theorem import TIME_MODEL, Measured, Steps, needed_rho, summarize, trace_run

SCENARIO, DATA_SEED = "digits-4", 0
RHOS = (0.01, 0.1, 0.5, 1.0, 10.0)
PENALTY = 0.01
FEWEST, MOST = 5, 10  # local steps: H_min, H_max
CLIENTS, UPLOADS, SEEDS = 20, 600, 3
SMOKE_UPLOADS, SMOKE_SEEDS, SMOKE_RHOS = 60, 1, 2
EPSILON = 1.0  # the theorem wants it small; the bound falls as it grows, so a large one favours the theorem
SETTINGS = paper("fashion-mnist-4").replace(
    loss_bar="min",
    gap_bar="min",
    distance_bar="min",
    max_staleness=CLIENTS,
    cluster_step="towards",  # the theorem is about these three
    rate_floor="mean",
    staleness_hinge="paper",
)
SHADES = ("#A6C8E4", "#74AFD6", "#4292C6", "#1764AB", "#08306B")  # of rho; the larger, the darker
NOTE = """\
*Gradient*: squared norm of the gradient of F_k at clients' models, mean over clusters; first and last quarter of the
S_k updates, and all. *V_1*: the largest. *Aligned*: the gradients of J_k and J_m do not point apart. *Fall*: of
F_k(w_k).
"""
NEEDS = {
    "largest_distance": "largest distance",
    "limit": "sqrt(V_1) / rho",
    "needed_at_largest": "rho needed there",
    "needed_at_median": "at the median distance",
}


def settings(smoke: bool) -> dict[str, Any]:
    """Return everything that decides what is measured for a rho, as it is stored."""
    scenario = load_scenario(SCENARIO).to_dict()
    stored: dict[str, Any] = jsonable(
        {
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
            "settings": SETTINGS.to_dict(),
            "device": "cpu",
            "dtype": "float64",
        }
    )
    return stored


def measure(results: Results, smoke: bool, tell: Tell = print) -> None:
    """Run every rho that is missing with these settings; store each before the next."""
    asked = settings(smoke)
    rhos = RHOS[:SMOKE_RHOS] if smoke else RHOS
    done = found(results, asked)
    missing = [rho for rho in rhos if str(rho) not in done]
    tell(f"{len(rhos)} rho, {len(rhos) - len(missing)} of them stored already")
    if not missing:
        return
    problem = SoftmaxProblem(load_scenario(SCENARIO).federation(seed=DATA_SEED), PENALTY)
    optima = torch.stack([problem.optimum(k) for k in range(problem.num_clusters)])
    for number, rho in enumerate(missing, start=1):
        begun = time.monotonic()
        measured = _measure(problem, optima, rho, asked, tell)
        seconds = round(time.monotonic() - begun, 1)
        header = {"machine": machine() | versions(), "commit": commit(), "seconds": seconds}
        done[str(rho)] = header | measured
        results.add_measured("theorem1", asked, rho=done)
        tell(f"{number} of {len(missing)}: rho {rho:g}, {seconds:.0f} s")


def found(results: Results, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored of each rho with these settings."""
    stored = results.measured("theorem1")
    if stored is None:
        return {}
    # A setting that came later had its default.
    then = {**stored["settings"], "settings": jsonable(Settings.from_dict(stored["settings"]["settings"]).to_dict())}
    return dict(stored["rho"]) if then == asked else {}


def _measure(problem: SoftmaxProblem, optima: Tensor, rho: float, asked: dict[str, Any], tell: Tell) -> dict[str, Any]:
    steepest = max(problem.smoothness(k) for k in range(problem.num_clusters))
    steps = Steps(FEWEST, MOST, 1 / (steepest + rho), rho)
    traces = []
    for seed in range(asked["seeds"]):
        tell(f"  rho {rho:g}: {asked['uploads']} uploads with seed {seed}")
        traces.append(trace_run(problem, steps, SETTINGS, CLIENTS, asked["uploads"], seed))
    return summarize(problem, optima, steps, traces, SETTINGS.rates.base_rate, EPSILON)


def measured(results: Results) -> list[Measured]:
    """Return what was measured of each rho with the settings of today."""
    stored = found(results, settings(results.smoke))
    return [Measured(rho, stored[str(rho)]) for rho in RHOS if str(rho) in stored]


def report(results: Results) -> str:
    """Return the bound beside what was measured, the condition on rho, and what became of the loss."""
    there = measured(results)
    if not there:
        return NOT_RUN
    bounds, conditions, falls = [], [], []
    stiff = max(there, key=lambda one: one.rho)
    for one in there:
        first, last = one.ends
        numbers = [first, last, one.mean("measured"), one["v1"], one.bound, *one.terms.values()]
        shown = [f"{value:.2g}" for value in numbers]
        bounds.append([f"{one.rho:g}", f"{one.mean('updates'):.0f}", *shown, f"{one.excess:,.0f}"])
        needs = [f"{one[name]:.2g}" for name in NEEDS]
        shares = [f"{one[name]:.0%}" for name in ("at_start", "aligned")]
        conditions.append([f"{one.rho:g}", *needs, *shares, f"{one['least_alignment']:.2f}"])
        change, over = last / first - 1, last / stiff.ends[1] - 1
        rising = sum(fall < 0 for fall in one.falls)
        parts = [percent(change), percent(over), f"{one.fall:.3f}", f"{rising} of {len(one.falls)}"]
        falls.append([f"{one.rho:g}", *parts])
    terms = [f"term: {name}" for name in there[0].terms]
    header = ["rho", "S_k", "gradient, first", "last", "mean", "V_1", "bound", *terms, "bound / V_1"]
    asked = ["rho", *NEEDS.values(), "steps at v = u", "steps aligned", "least alignment"]
    ends = [
        "rho",
        "gradient, first to last",
        f"last, against rho {stiff.rho:g}",
        "mean fall of F_k",
        "clusters and seeds in which F_k rises",
    ]
    return "\n".join([NOTE, table(header, bounds), table(asked, conditions), table(ends, falls), _provenance(there)])


def percent(part: float) -> str:
    """Return a change in percent, with its sign.

    >>> percent(0.104), percent(-0.001)
    ('+10%', '+0%')
    """
    return f"{round(part, 2) + 0.0:+.0%}"  # + 0.0: no -0%


def _provenance(there: list[Measured]) -> str:
    lines = []
    for one in there:
        on = one["machine"]
        lines.append([f"{one.rho:g}", on["cpu"], on["torch"], on["date"], str(one["commit"]), f"{one['seconds']:,.0f}"])
    return table(["rho", "machine", "torch", "day", "commit", "seconds"], lines)


ABOVE: Any = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0, "ncols": 3}  # above a panel
ABOVE |= {"handlelength": 1.2, "handletextpad": 0.3, "columnspacing": 0.8}


def draw(results: Results, folder: Path) -> list[str]:
    """Draw the gradient over updates, the bound above it, and the rho that the theorem needs at each distance."""
    there = measured(results)
    if not there:
        return []
    with figure(folder, "theorem1", PAGE, 2.3, smoke=results.smoke, ncols=3) as axes:
        for one, color in zip(there, SHADES, strict=False):
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
        legend(axes[0], ncols=len(there))
    return ["theorem1"]


EXPERIMENT = Experiment("theorem1", __doc__, report, draw, measure=measure)
