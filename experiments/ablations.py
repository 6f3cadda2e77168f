"""Ablations: one setting changed at a time, 4 clusters.

Claim: the paper's (section 5.3, figure 7, appendix C.1): proxy sets of 500 images are enough, more clients change
little, a small rho serves clusters. Drift, time model and tau_0 alone are our questions.
Settings: CDFL in `paper-reading` with one change; time models also in `default`. FashionMNIST: 100 clients, 2,000
uploads; CIFAR-10: 20 clients, 400 uploads. The number of uploads does not grow with the clients.
Cost: on one H200, 3 minutes a trial for FashionMNIST, half an hour for CIFAR-10.

    cdfl paper ablations --rows fashion-mnist-4-ablation
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, product, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from cdfl.data.randomness import generator
from cdfl.scenarios import load_scenario
from cdfl.sim.presets import find_preset
from cdfl.sim.time_models import TIME_MODELS
from experiments.harness import Experiment, Results, RunKey, StoredRun, resolve
from experiments.harness.figure_style import COLORS, LINES, MARKERS, PAGE, PALE, WORDS, figure, legend, means
from experiments.harness.table1_rows import COLUMNS
from experiments.harness.tables import number, provenance, spread, table

SCENARIOS = {"fashion-mnist-4-ablation": "FashionMNIST (4)", "cifar-10-4": "CIFAR-10 (4) †"}
ONE_CLUSTER = {"fashion-mnist-4-ablation": "fashion-mnist-1", "cifar-10-4": "cifar-10-1"}
MORE_CLIENTS = (1, 2.5, 5, 10)  # times those of the scenario: the paper's 100, 250, 500 and 1,000
PAIRS = ((10, 5), (1, 5), (10, 3), (1, 3), (10, 20))  # (a, b), the preset's first
UNIFORM_PAIRS = (PAIRS[0], (1, 5), (10, 200))
NUMBERS = dict(zip(COLUMNS, COLUMNS, strict=True)) | {
    "divergence": "KL",
    "deprecated_share": "deprecated",
    "rate": "mean rate",
}
NOTE = (
    "*Deprecated*: share of uploads older than tau_0, which move nothing. *Mean rate*: mean over the largest rates of "
    "uploads. † replaces CIFAR-100.\n"
)
LITTLE = {"size of proxy set": 0, "number of clients": -1}  # the paper: the first or last value gives what others give
Changes = dict[str, Any]


def questions(scenario: str) -> dict[str, dict[str, Changes]]:
    """Return question -> value -> changes; no change is the base of all questions."""
    usual = load_scenario(scenario).num_clients
    more = [int(times * usual) for times in MORE_CLIENTS if times != 1]
    return {
        "size of proxy set": {str(size): {"proxy": size} if size != 1000 else {} for size in (500, 1000, 2000, 4000)},
        "rho": {str(rho): {"proximal_strength": rho} if rho != 0.1 else {} for rho in (0.01, 0.1, 0.5, 1.0)},
        "number of clients": {str(usual): {}} | {str(many): {"num_clients": many} for many in more},
        "number of clients, tau_0 fixed": {str(usual): {}}
        | {str(many): {"num_clients": many, "max_staleness": usual} for many in more},
        "(a, b)": {f"({a}, {b})": _staleness_weight(a, b) for a, b in PAIRS},
        "(a, b), uniform uploads": {
            f"({a}, {b})": {"time_model": "uniform"} | _staleness_weight(a, b) for a, b in UNIFORM_PAIRS
        },
        "drift": {
            "the paper's": {},
            "none": {"drift": "static"},
            "uneven others": {"drift": {"kind": "paper", "rest": "uneven"}},
        },
    }


def _staleness_weight(a: int, b: int) -> Changes:
    return {} if (a, b) == PAIRS[0] else {"staleness_slope": a, "staleness_grace": b}


def times(preset: str) -> dict[str, Changes]:
    """Return the simple time models; the preset's own is no change."""
    usual = find_preset(preset).time_model
    return {
        name: {} if model == usual else {"time_model": name} for name, model in TIME_MODELS.items() if name != "devices"
    }


def run_keys(trials: int) -> list[RunKey]:
    """Return every line of the tables; the base of several questions once."""
    every = [
        RunKey(where, preset, "cdfl", seed, changes)
        for scenario in SCENARIOS
        for _, preset, _, where, changes in _lines(scenario)
        for seed in range(trials)
    ]
    return list({key.name: key for key in every}.values())


def report(results: Results) -> str:
    """Return a table of all questions for each scenario, and the changes that the paper calls small."""
    parts, used = [], []
    for scenario, title in SCENARIOS.items():
        lines = []
        for question, values in found(results, scenario).items():
            for name, trials in values.items():
                used += trials
                numbers = [[kept.end[column] for kept in trials] for column in NUMBERS]
                lines.append([question, name, str(len(trials)), *map(spread, numbers)])
        if lines:
            parts += [f"**{title}**\n", table(["question", "value", "trials", *NUMBERS.values()], lines)]
    judged = [] if results.smoke else [_changes(results)]
    return "\n".join([*parts, NOTE, *judged, provenance(used)])


def _changes(results: Results) -> str:
    lines = []
    for (scenario, title), question in product(SCENARIOS.items(), LITTLE):
        if changed := largest_change(results, scenario, question):
            value = list(questions(scenario)[question])[LITTLE[question]]
            lines.append([f"{title}, {question} {value}", *(number(changed[column]) for column in COLUMNS)])
    return table(["largest difference to the other values", *COLUMNS], lines)


def largest_change(results: Results, scenario: str, question: str) -> dict[str, float]:
    """Return how far one value of a question is from the others at most, by accuracy; empty if it was not run."""
    value = list(questions(scenario)[question])[LITTLE[question]]
    others = accuracies(results, scenario).get(question, {})
    own = others.pop(value, None)
    if own is None or not others:
        return {}
    return {column: max(abs(own[column] - other[column]) for other in others.values()) for column in COLUMNS}


def accuracies(results: Results, scenario: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return question -> value -> accuracies, mean over trials."""
    return {
        question: {
            name: {column: fmean(kept.end[column] for kept in trials) for column in COLUMNS}
            for name, trials in values.items()
        }
        for question, values in found(results, scenario).items()
    }


def found(results: Results, scenario: str) -> dict[str, dict[str, list[StoredRun]]]:
    """Return question -> value -> trials, for questions with two values or more."""
    there: dict[str, dict[str, list[StoredRun]]] = {}
    for question, preset, name, where, changes in _lines(scenario):
        if trials := results.trials(where, preset, "cdfl", changes):
            there.setdefault(question, {})[name] = trials
    return {question: values for question, values in there.items() if len(values) > 1}


def _lines(scenario: str) -> list[tuple[str, str, str, str, Changes]]:
    """Return question, preset, value, scenario that is run, changes."""
    lines = [
        (question, "paper-reading", name, scenario, changes)
        for question, values in questions(scenario).items()
        for name, changes in values.items()
    ]
    usual = load_scenario(scenario)
    size = {"num_clients": usual.num_clients, "num_uploads": usual.num_uploads}
    lines.append(("clusters", "paper-reading", "1", ONE_CLUSTER[scenario], size))
    lines.append(("clusters", "paper-reading", "4", scenario, {}))
    for preset, title in (("paper-reading", "time model"), ("default", "time model, `default`")):
        lines += [(title, preset, name, scenario, changes) for name, changes in times(preset).items()]
    return lines


def draw(results: Results, folder: Path) -> list[str]:
    """Draw accuracies over the values of every question, and the staleness under each time model."""
    drawn = []
    for scenario, title in SCENARIOS.items():
        if not found(results, scenario):
            continue
        drawn += [_accuracies(results, scenario, title, folder), *_staleness(results, scenario, title, folder)]
    return drawn


# Questions in a line share an axis; the number is its height in inches.
ORDERED = ("size of proxy set", "rho", "number of clients", "number of clients, tau_0 fixed")
PANELS = {
    (*ORDERED, "drift"): 2.1,
    ("(a, b)", "(a, b), uniform uploads", "time model", "time model, `default`", "clusters"): 2.7,
}
CHARACTERS = 90  # that fit below all panels of a line


def _accuracies(results: Results, scenario: str, title: str, folder: Path) -> str:
    there = found(results, scenario)
    presets = {question: preset for question, preset, *_ in _lines(scenario)}
    rows = [
        (own, height) for row, height in PANELS.items() if (own := [question for question in row if question in there])
    ]
    heights = [height for _, height in rows]
    name = f"ablations-{scenario.removesuffix('-ablation')}"
    grid: Any = {"nrows": len(rows), "ncols": max(len(row) for row, _ in rows), "sharey": "row", "squeeze": False}
    room = CHARACTERS // grid["ncols"]
    with figure(folder, name, PAGE, sum(heights) + 0.3, smoke=results.smoke, height_ratios=heights, **grid) as axes:
        for line, (row, _) in zip(axes, rows, strict=True):
            line[0].set_ylabel(f"accuracy,\n{title.replace(' (4)', '')}")  # one panel has other numbers of clusters
            for own, question in zip_longest(line, row):
                if question is None:
                    own.set_axis_off()
                    continue
                draw_panel(own, there[question], joined=question in ORDERED)
                name_values(own, list(there[question]), room)
                own.set_title(_title(question, presets[question]))
        legend(axes[0][0], ncols=4)
    return name


def _title(question: str, preset: str) -> str:
    """Return a question in short lines, the preset last."""
    asked = question.removesuffix(f", `{preset}`")
    return re.sub(r", (?!b\))", ",\n", asked) + f",\n{preset}"


def draw_panel(axes: Any, values: Mapping[str, list[StoredRun]], joined: bool) -> None:
    """Draw a point for each value and accuracy; `joined` draws lines between values that have an order."""
    for column, aside in zip(COLUMNS, (-0.2, 0, 0.2), strict=True):
        style = {"ls": LINES[column] if joined else "", "color": COLORS["cdfl"]} | MARKERS[column]
        trials = [[kept.end[column] for kept in found] for found in values.values()]
        at = [place if joined else place + aside for place in range(len(values))]
        means(axes, at, trials, label=WORDS[column], **style)
    for place, found in enumerate(values.values()):
        if not found[0].key.changes:
            axes.axvspan(place - 0.4, place + 0.4, color=PALE, lw=0, zorder=0, label="value of the preset")
    axes.set_xlim(-0.5, len(values) - 0.5)


def name_values(axes: Any, names: Sequence[str], room: int) -> None:
    """Put names below the axis; turn them if they need more than `room` characters."""
    fit = len(names) * (max(map(len, names)) + 1) <= room
    turned: Any = {} if fit else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(names)), names, **turned)


def _staleness(results: Results, scenario: str, title: str, folder: Path) -> list[str]:
    there = found(results, scenario).get("time model")
    if there is None:
        return []
    drawn = f"ablations-staleness-{scenario.removesuffix('-ablation')}"
    shown: Any = {"smoke": results.smoke, "ncols": len(there), "squeeze": False, "sharex": True}
    with figure(folder, drawn, PAGE, 2.2, **shown) as axes:
        for own, (name, trials) in zip(axes[0], there.items(), strict=True):
            draw_histogram(own, np.concatenate([staleness(kept) for kept in trials]))
            draw_limits(own, trials[0], [b for _, b in PAIRS])
            own.set_title(f"{name}\n({fmean(kept.end['deprecated_share'] for kept in trials):.0%} above tau_0)")
        axes[0][0].set_ylabel(f"share of uploads,\n{title}")
        legend(axes[0][0], ncols=4)
    return [drawn]


def staleness(kept: StoredRun) -> list[int]:
    """Return the staleness of every upload of a run.

    Results keep it in bins that are too wide for a picture. It depends on time model and seed only, so it is computed
    again without training.
    """
    config = resolve(kept.key, "cpu", smoke=kept.record["smoke"])
    ticks = config.time_model.ticks(config.scenario.num_clients, generator(config.seed, "turns"))
    turns = (tick.client for tick in ticks if tick.kind == "turn")
    last = dict.fromkeys(range(config.scenario.num_clients), 0)
    ages = []
    for epoch, client in enumerate(islice(turns, config.scenario.num_uploads), start=1):
        ages.append(epoch - last[client])
        last[client] = epoch
    return ages


def draw_histogram(axes: Any, ages: np.ndarray) -> None:
    """Draw ten bins a decade, none narrower than an epoch."""
    edges = np.unique((10 ** np.arange(0, np.log10(ages.max()) + 0.2, 0.1)).round())
    counts, _ = np.histogram(ages, edges)
    axes.bar(edges[:-1], counts / len(ages), np.diff(edges), align="edge", color=COLORS["cdfl"])
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set(xscale="log", xlabel="staleness of an upload")
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.minorticks_off()


def draw_limits(axes: Any, kept: StoredRun, tried: Iterable[float]) -> None:
    """Draw where the damping begins, here and for other pairs (a, b), and the limit tau_0."""
    rates = kept.record["config"]["settings"]["rates"]
    grace, oldest = rates["staleness_grace"], rates["max_staleness"]
    others = sorted(set(tried) - {grace})
    axes.axvline(grace, color="black", lw=0.8, label=f"b = {grace:g}")
    for b in others:
        axes.axvline(b, color="black", lw=0.8, ls=":", label=f"b = {', '.join(map(str, others))}: tried")
    axes.axvline(oldest, color="black", lw=0.8, ls="--", label=f"tau_0 = {oldest}: older ones move nothing")


EXPERIMENT = Experiment(
    "ablations", __doc__, report, draw, run_keys, trials=3, smoke_rows=("fashion-mnist-4-ablation", "fashion-mnist-1")
)
