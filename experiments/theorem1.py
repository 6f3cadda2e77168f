"""Theorem 1: the gradient over S_k updates of a cluster, against the bound with measured constants.

Claim: the bound is vacuous (Assumption 3 alone grants more), and the condition on rho that it rests on is never met by
local training. Where the gradient goes, and where F_k rises, is measured beside it.
Settings: softmax regression with a quadratic term on 8x8 digits in 4 rotations, 20 clients of which 4 are active at a
time, 5 to 10 full gradient steps of 1 / (L + rho), beta_0, a and b as printed, `min` bars; several rho.
Machine: one CPU core, float64. Cost: about three minutes.

    cdfl paper theorem1
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cdfl.core import Hyperparams, paper
from cdfl.core.hyperparams import BEFORE
from cdfl.paper import Results
from cdfl.paper.convex import Regression
from cdfl.paper.figures import PAGE, figure, legend
from cdfl.paper.machine import commit, machine
from cdfl.paper.tables import table
from cdfl.paper.theorem import TIME_MODEL, Steps, needed_rho, summarize, trace_run
from cdfl.plain import plain
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
CLEARLY = 0.05
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
        "time_model": plain(TIME_MODEL),
        "uploads": SMOKE_UPLOADS if smoke else UPLOADS,
        "seeds": SMOKE_SEEDS if smoke else SEEDS,
        "epsilon": EPSILON,
        "hyperparams": plain(asdict(HYPERPARAMS)),
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


def _found(results: Results, *asked: dict[str, Any]) -> dict[str, Any]:
    """What is there of each rho, if it is of settings that are asked for."""
    stored = results.measured("theorem1")
    return dict(stored["rho"]) if stored is not None and any(_is_of(stored, one) for one in asked) else {}


def _is_of(stored: Mapping[str, Any], asked: dict[str, Any]) -> bool:
    """Whether it was run with these settings; a hyperparameter that did not exist then changed nothing."""
    then = stored["settings"]
    hyperparams = plain(asdict(Hyperparams())) | BEFORE | then.get("hyperparams", {})
    return {**then, "hyperparams": hyperparams} == asked


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
    for rho, one in found.items():
        own = one["clusters"]
        terms = _terms(one)
        numbers = (*_ends(one), _mean(cluster["measured"] for cluster in own), one["v1"], sum(terms.values()))
        updates = f"{_mean(cluster['updates'] for cluster in own):.0f}"
        shown = [f"{value:.2g}" for value in (*numbers, *terms.values())]
        bounds.append([f"{rho:g}", updates, *shown, f"{_excess(one):,.0f}"])
        needs = ("largest_distance", "limit", "needed_at_largest", "needed_at_median")
        shares = [f"{one[name]:.0%}" for name in ("at_start", "aligned")]
        words = [*(f"{one[name]:.2g}" for name in needs), *shares, f"{one['least_alignment']:.2f}"]
        conditions.append([f"{rho:g}", *words])
    header = ["rho", "S_k", "gradient, first", "last", "mean", "V_1", "bound", *(f"term: {name}" for name in terms)]
    asked = ["rho", "largest distance", "sqrt(V_1) / rho", "rho needed there", "at the median distance"]
    asked += ["steps at v = u", "steps aligned", "least alignment"]
    tables = [table([*header, "bound / V_1"], bounds), table(asked, conditions)]
    return "\n".join([MEANING, *tables, _words(found), _line(found, results)])


MEANING = """\
*Gradient*: squared norm of the gradient of F_k at the models of clients in training, mean over clusters; over the first
and the last quarter of S_k updates, and over all. *V_1*: the largest squared gradient seen. *Aligned*: steps at which
the gradients of J_k and J_m do not point apart.
"""


def _words(found: dict[float, dict[str, Any]]) -> str:
    """What follows from the tables, and what is wrong with the theorem whatever they say."""
    least = min(_excess(one) for one in found.values())
    most = min(_terms(one)["distances"] / sum(_terms(one).values()) for one in found.values())
    apart = [1 - one["aligned"] for one in found.values()]
    return f"""\
- **The bound is vacuous.** Assumption 3 grants that no squared gradient of a client is above V_1; F_k is the loss of a
  client of cluster k alone, so its gradient is below V_1 without any theorem. The bound is {least:,.0f} times V_1 or
  more, although epsilon, which the theorem wants small, is {EPSILON:g} here and the bound grows as 1 / epsilon. Its
  term of squared distances between clusters is {most:.0%} of it or more; of the four, only the first falls with S_k.
- **The condition on rho is never met.** It asks for rho >= V_1 / d^2 + 1/4 + sqrt((1 + V_1) epsilon) / d at the
  distance d = ||v - u|| of every local step. At the first step d = 0, where no rho is enough. Later, with steps
  gamma <= 1 / rho, d stays below sqrt(V_1) / rho: each step shortens v - u by a part gamma rho of it and adds at most
  gamma sqrt(V_1). So V_1 / d^2 >= rho^2, and the condition would need (rho - 1/2)^2 < 0. This holds for every problem.
- **Two steps of the proof do not follow.** It replaces (||grad F_k||^2 + ||grad f_m||^2) / 2 by epsilon, which needs
  V_1 <= epsilon; and its quadratic inequality in rho has a larger root than the one that is printed.
- **What the condition is for does not hold either.** The proof needs it to keep the gradients of J_k and J_m from
  pointing apart at any step; here they do at {min(apart):.0%} to {max(apart):.0%} of the steps, depending on rho.
- **The gradient itself** {_gradient(found)}
- **F_k**, the loss of a cluster's model on all data of its cluster, {_falls(found)}
"""


def _gradient(found: dict[float, dict[str, Any]]) -> str:
    """Where it goes, and how that compares with clients that hardly move."""
    ends = {rho: _ends(one) for rho, one in found.items()}
    moves = _listed(f"{_percent(last / first - 1)} with rho {rho:g}" for rho, (first, last) in ends.items())
    told = f"changes from the first to the last quarter of updates by {moves}."
    stiff = max(ends)
    _, level = ends.pop(stiff)
    if ends:
        over = {rho: last / level - 1 for rho, (_, last) in ends.items()}
        below = [f"{rho:g}" for rho, part in over.items() if part < -CLEARLY]
        told += (
            f" Clients with rho {stiff:g} never go further than {found[stiff]['largest_distance']:.2g} from what they"
        )
        told += f" received, and see {level:.4f} in the last quarter. Others see, compared with that, "
        told += _listed(f"{_percent(part)} with rho {rho:g}" for rho, part in over.items())
        told += f"; clearly (by {CLEARLY:.0%}) less with {f'rho {_listed(below)}' if below else 'none'}."
    return told


def _falls(found: dict[float, dict[str, Any]]) -> str:
    """With which rho clusters end better than they began, and with which worse."""
    parts = []
    for sign, word in ((1, "falls"), (-1, "rises")):
        which = []
        for rho, one in found.items():
            falls = _all_falls(one)
            if sign * _mean(falls) > 0:
                count = sum(sign * fall > 0 for fall in falls)
                which.append(f"rho {rho:g} (by {abs(_mean(falls)):.3f}; in {count} of {len(falls)} clusters and seeds)")
        if which:
            parts.append(f"{word} with {_listed(which)}")
    told = "; it ".join(parts) + "."
    return told + (" Where it rises, clusters end worse than they began." if "rises" in told else "")


def verdict(results: Results) -> str:
    """How far the bound and the condition are from what happens."""
    found = _results(results)
    if not found:
        return "Theorem 1 has not been looked at yet.\n"
    least = min(_excess(one) for one in found.values())
    short = min(one["needed_at_largest"] / rho for rho, one in found.items())
    rising = [f"{rho:g}" for rho, one in found.items() if _mean(_all_falls(one)) < 0]
    words = f"The bound of Theorem 1 is at least {least:,.0f} times what its own Assumption 3 grants, and the rho that "
    words += (
        f"it asks for is at least {short:.1f} times the one used at every distance that occurs, for every rho tried."
    )
    return words + (f" The loss it is about rises over the run with rho {_listed(rising)}." if rising else "") + "\n"


def _line(found: dict[float, dict[str, Any]], results: Results) -> str:
    """Where the numbers come from."""
    told = (results.measured("theorem1") or {})["settings"]
    machines = {
        f"{one['machine']['cpu']}, torch {one['machine']['torch']}, {one['machine']['date']}" for one in found.values()
    }
    commits = {str(one["commit"]) for one in found.values()}
    missing = [f"{rho:g}" for rho in RHOS if rho not in found and not told["smoke"]]
    words = f"{told['seeds']} seeds of {told['uploads']:,} uploads for each rho in "
    words += f"{sum(one['seconds'] for one in found.values()):,.0f} s; {'; '.join(sorted(machines))}; "
    words += f"commit {', '.join(sorted(commits))}."
    words += f" Not run yet: rho {_listed(missing)}." if missing else ""
    return words + (" **A smoke run: it shows that the code works and nothing else.**" if told["smoke"] else "") + "\n"


def _results(results: Results) -> dict[float, dict[str, Any]]:
    """What is known of each rho; what was measured with other settings is no result."""
    found = _found(results, settings(smoke=False), settings(smoke=True))
    return {rho: found[str(rho)] for rho in RHOS if str(rho) in found}


def _all_falls(one: dict[str, Any]) -> list[float]:
    """F_k(w_k^0) - F_k(w_k^S) of every cluster and seed."""
    return [fall for cluster in one["clusters"] for fall in cluster["falls"]]


def _terms(one: dict[str, Any]) -> dict[str, float]:
    names = one["clusters"][0]["terms"]
    return {name: _mean(cluster["terms"][name] for cluster in one["clusters"]) for name in names}


def _excess(one: dict[str, Any]) -> float:
    """How many times V_1 the bound is."""
    return sum(_terms(one).values()) / float(one["v1"])


def _curve(one: dict[str, Any]) -> np.ndarray:
    """The squared gradient over the updates of a cluster, mean over clusters."""
    curves = [cluster["curve"] for cluster in one["clusters"]]
    length = min(map(len, curves))
    return np.mean([curve[:length] for curve in curves], axis=0)


def _ends(one: dict[str, Any]) -> tuple[float, float]:
    """The means of the first and of the last quarter of that curve."""
    curve = _curve(one)
    quarter = max(1, len(curve) // 4)
    return float(curve[:quarter].mean()), float(curve[-quarter:].mean())


def _listed(words: Any) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _percent(part: float) -> str:
    return f"{round(part, 2) + 0.0:+.0%}"  # no -0%


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def draw(results: Results, folder: Path) -> list[str]:
    """The gradient over updates; the bound above it; the rho that the theorem asks for at each distance."""
    found = _results(results)
    if not found:
        return []
    with figure(folder, "theorem1", PAGE, 2.3, smoke=results.smoke, ncols=3) as axes:
        for (rho, one), color in zip(found.items(), SHADES, strict=False):
            curve, own = _curve(one), one["clusters"]
            updates = np.arange(1, len(curve) + 1) / len(curve) * _mean(cluster["updates"] for cluster in own)
            axes[0].plot(updates, curve, color=color, label=f"rho = {rho:g}")
            seen = _mean(cluster["measured"] for cluster in own)
            for value, marker in ((sum(_terms(one).values()), "v"), (one["v1"], "_"), (seen, "o")):
                axes[1].plot(f"{rho:g}", value, marker, color=color)
            far = np.geomspace(one["largest_distance"] / 100, one["limit"], 60)
            axes[2].plot(far, [needed_rho(d, one["v1"], EPSILON) for d in far], color=color)
            axes[2].plot([far[0], far[-1]], [rho] * 2, "--", lw=0.8, color=color)
        axes[0].set(xlabel="updates of a cluster", ylabel="squared gradient")
        axes[0].set_ylim(bottom=0)
        legend(axes[0], ncols=len(found))
        axes[1].set(yscale="log", xlabel="rho", title="bound (v), V_1 (-), measured (o)")
        axes[2].set(xscale="log", yscale="log", xlabel="distance ||v - u||", title="rho needed (-), used (--)")
    return ["theorem1"]
