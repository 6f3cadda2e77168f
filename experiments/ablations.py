"""Ablations: one setting changed at a time, 4 clusters.

Claim: the paper's (section 5.3, figure 7, appendix C.1): proxy sets of 500 images are enough, more clients change
little (here each of many uploads less often, as uploads are as many in all), and a small rho serves clusters. What the
paper does not vary: no drift, who is there when, and a fixed tau_0 while clients grow.
Settings: CDFL in `paper-reading` with one change; time models also in `default`. 100 clients and 2,000 uploads on
FashionMNIST; the 20 clients and 400 uploads of Table 1 on CIFAR-10, which stands in for CIFAR-100, where the paper has
100 and 1,000.
Machine: one H200, and two CPU cores for the third trial of one cluster on FashionMNIST, hours instead of seconds;
seconds stand beside the results. Cost: about 30 settings for each of the two rows; two or three minutes a trial for
FashionMNIST, six processes side by side; about half an hour for CIFAR-10, three.

    cdfl paper ablations --rows fashion-mnist-4-ablation
"""

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from cdfl.paper import Cell, Kept, Results
from cdfl.paper.compare import grouped
from cdfl.paper.figures import COLORS, LINES, MARKERS, PAGE, PALE, figure, legend, means
from cdfl.paper.rows import COLUMNS
from cdfl.paper.staleness import histogram, limits, staleness
from cdfl.paper.tables import number, provenance, span, spread, table
from cdfl.scenarios import load_scenario
from cdfl.sim.presets import find_preset
from cdfl.sim.time_models import TIME_MODELS

NUMBER, TRIALS = 5, 3
SMOKE_ROWS = ("fashion-mnist-4-ablation", "fashion-mnist-1")
SCENARIOS = {"fashion-mnist-4-ablation": "FashionMNIST (4)", "cifar-10-4": "CIFAR-10 (4) †"}
ONE_CLUSTER = {"fashion-mnist-4-ablation": "fashion-mnist-1", "cifar-10-4": "cifar-10-1"}
MORE_CLIENTS = (1, 2.5, 5, 10)  # times those of the scenario: the paper's 100, 250, 500 and 1,000
PAIRS = ((10, 5), (1, 5), (10, 3), (1, 3), (10, 20))  # (a, b), the preset's first
UNIFORM_PAIRS = (PAIRS[0], (1, 5), (10, 200))
LITTLE = 0.01  # of accuracy: a change that is no more is little
NUMBERS = dict(zip(COLUMNS, COLUMNS, strict=True)) | {
    "divergence": "KL",
    "deprecated": "deprecated",
    "rate": "mean rate",
}
WORDS = (
    "*Deprecated*: share of uploads older than tau_0, which move nothing. *Mean rate*: how far the cluster that moves "
    "most goes to an upload."
)
CHANGES_LITTLE = {  # what the paper says of one value, the first or the last: it gives about what others give
    "size of proxy set": (0, "proxy sets of {} are enough"),
    "number of clients": (-1, "more clients change little"),
}
OF_RHO = {  # what the paper says of it, and whether the accuracy then falls as rho grows
    "cluster": ("a small rho serves clusters", True),
    "before": ("a small rho costs clients accuracy before they upload, seen by the paper on CIFAR-100", False),
}
Changes = dict[str, Any]


def questions(scenario: str) -> dict[str, dict[str, Changes]]:
    """Question -> what a line is called -> changes. An empty change is the base of all of them."""
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
    """The simple time models; that of the preset is no change."""
    usual = find_preset(preset).time_model
    return {
        name: {} if model == usual else {"time_model": name} for name, model in TIME_MODELS.items() if name != "devices"
    }


def cells(trials: int) -> list[Cell]:
    """Every line of the tables; the base of several questions once."""
    found = [
        Cell(where, preset, "cdfl", seed, changes)
        for scenario in SCENARIOS
        for _, preset, _, where, changes in _lines(scenario)
        for seed in range(trials)
    ]
    return list({cell.key: cell for cell in found}.values())


def report(results: Results) -> str:
    """A table for each scenario, with all questions, and what it comes to."""
    parts, used = [], []
    for scenario, title in SCENARIOS.items():
        lines = []
        for question, values in _found(results, scenario).items():
            for name, trials in values.items():
                used += trials
                numbers = [[kept.end[column] for kept in trials] for column in NUMBERS]
                lines.append([question, name, str(len(trials)), *map(spread, numbers)])
        if lines:
            parts += [f"**{title}**\n", table(["question", "value", "trials", *NUMBERS.values()], lines)]
    stand_in = " † stands in for CIFAR-100, which is not at hand." if any("†" in part for part in parts) else ""
    told = [] if results.smoke else [verdict(results)]
    return "\n".join([*parts, WORDS + stand_in + "\n", *told, provenance(used)])


def _found(results: Results, scenario: str) -> dict[str, dict[str, list[Kept]]]:
    """Question -> value -> trials, of values that were run; a question needs two of them."""
    found: dict[str, dict[str, list[Kept]]] = {}
    for question, preset, name, where, changes in _lines(scenario):
        if trials := results.trials(where, preset, "cdfl", changes):
            found.setdefault(question, {})[name] = trials
    return {question: values for question, values in found.items() if len(values) > 1}


def _lines(scenario: str) -> list[tuple[str, str, str, str, Changes]]:
    """Question, preset, value, where it is run, changes."""
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


def verdict(results: Results) -> str:
    """Whether the paper's three claims hold, and the best and the worst value of each question."""
    lines = []
    for scenario, title in SCENARIOS.items():
        means = _means(results, scenario)
        told = (*_claims(scenario, means), *_extremes(means), *_left_out(results, scenario))
        lines += [f"- {title}, {part}\n" for part in told]
    return "".join(lines) or "Ablations have not been run yet.\n"


Means = Mapping[str, Mapping[str, Mapping[str, float]]]  # question -> value -> accuracy, mean over trials


def _means(results: Results, scenario: str) -> Means:
    return {
        question: {
            name: {column: fmean(kept.end[column] for kept in trials) for column in COLUMNS}
            for name, trials in values.items()
        }
        for question, values in _found(results, scenario).items()
    }


def _claims(scenario: str, means: Means) -> list[str]:
    """What became of the paper's claims, as far as they can be told."""
    told = []
    for question, (place, claim) in CHANGES_LITTLE.items():
        value = list(questions(scenario)[question])[place]
        others = dict(means.get(question, {}))
        own = others.pop(value, None)
        if own and others:
            away = {column: max(abs(own[column] - other[column]) for other in others.values()) for column in COLUMNS}
            ways = {
                f"{name} ({number(most)})": "holds for" if most <= LITTLE else "not for" for name, most in away.items()
            }
            parts = [f"{way} {', '.join(names)}" for way, names in grouped(ways).items()]
            told.append(
                f"{claim.format(value)} ({value} within {number(LITTLE)} of {', '.join(others)}): {', '.join(parts)}"
            )
    for column, (claim, falls) in OF_RHO.items():
        if values := {name: own[column] for name, own in means.get("rho", {}).items()}:
            way = "holds" if list(values.values()) == sorted(values.values(), reverse=falls) else "does not hold"
            told.append(f"{claim}: {way}, {', '.join(f'{name} ({number(value)})' for name, value in values.items())}")
    return told


def _extremes(means: Means) -> list[str]:
    told = []
    for question, values in means.items():
        after = {name: own["after"] for name, own in values.items()}
        best, worst = max(after, key=lambda name: after[name]), min(after, key=lambda name: after[name])
        told.append(f"{question}: {best} {number(after[best])}, {worst} {number(after[worst])}")
    return [f"best and worst value after the reply: {'; '.join(told)}"] if told else []


def _left_out(results: Results, scenario: str) -> list[str]:
    """How many trials there are, and what was not run of a scenario of which something was."""
    if not _found(results, scenario):
        return []
    counts, missing = [], {}
    for question, preset, name, where, changes in _lines(scenario):
        counts.append(len(results.trials(where, preset, "cdfl", changes)))
        if counts[-1] == 0:
            missing.setdefault(question, []).append(name)
    listed = "; ".join(f"{question}: {', '.join(names)}" for question, names in missing.items())
    return [f"{span(counts)} of {TRIALS} trials" + (f"; not run: {listed}" if missing else "")]


def draw(results: Results, folder: Path) -> list[str]:
    """Accuracies over the values of every question, and the staleness under each time model."""
    drawn = []
    for scenario, title in SCENARIOS.items():
        if not _found(results, scenario):
            continue
        drawn += [_accuracies(results, scenario, title, folder), *_staleness(results, scenario, title, folder)]
    return drawn


# Questions whose values have an order come first; those in one line share an axis. Inches of its height.
ORDERED = ("size of proxy set", "rho", "number of clients", "number of clients, tau_0 fixed")
PANELS = {
    (*ORDERED, "drift"): 2.1,
    ("(a, b)", "(a, b), uniform uploads", "time model", "time model, `default`", "clusters"): 2.7,
}
CHARACTERS = 90  # side by side in all panels of a line


def _accuracies(results: Results, scenario: str, title: str, folder: Path) -> str:
    found = _found(results, scenario)
    presets = {question: preset for question, preset, *_ in _lines(scenario)}
    rows = [
        (own, height) for row, height in PANELS.items() if (own := [question for question in row if question in found])
    ]
    heights = [height for _, height in rows]
    name = f"ablations-{scenario.removesuffix('-ablation')}"
    grid: Any = {"nrows": len(rows), "ncols": max(len(row) for row, _ in rows), "sharey": "row", "squeeze": False}
    room = CHARACTERS // grid["ncols"]
    with figure(folder, name, PAGE, sum(heights) + 0.3, smoke=results.smoke, height_ratios=heights, **grid) as axes:
        for line, (row, _) in zip(axes, rows, strict=True):
            line[0].set_ylabel(f"accuracy,\n{title.replace(' (4)', '')}")  # a panel is about other numbers of clusters
            for own, question in zip_longest(line, row):
                if question is None:
                    own.set_axis_off()
                    continue
                _panel(own, found[question], joined=question in ORDERED)
                _name_values(own, list(found[question]), room)
                own.set_title(_title(question, presets[question]))
        legend(axes[0][0], ncols=4)
    return name


def _title(question: str, preset: str) -> str:
    """A question in short lines, the preset last."""
    asked = question.removesuffix(f", `{preset}`")
    return re.sub(r", (?!b\))", ",\n", asked) + f",\n{preset}"


def _panel(axes, values: Mapping[str, list[Kept]], joined: bool) -> None:
    """A point for each value and accuracy; lines between them where values have an order, else side by side."""
    for column, aside in zip(COLUMNS, (-0.2, 0, 0.2), strict=True):
        style = {"ls": LINES[column] if joined else "", "color": COLORS["cdfl"]} | MARKERS[column]
        trials = [[kept.end[column] for kept in found] for found in values.values()]
        at = [place if joined else place + aside for place in range(len(values))]
        means(axes, at, trials, label=column, **style)
    for place, found in enumerate(values.values()):
        if not found[0].cell.changes:
            axes.axvspan(place - 0.4, place + 0.4, color=PALE, lw=0, zorder=0, label="value of the preset")
    axes.set_xlim(-0.5, len(values) - 0.5)


def _name_values(axes, names: Sequence[str], room: int) -> None:
    """Names below the axis, turned where so many characters are too few for all of them in places of one size."""
    fit = len(names) * (max(map(len, names)) + 1) <= room
    turned: Any = {} if fit else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(names)), names, **turned)


def _staleness(results: Results, scenario: str, title: str, folder: Path) -> list[str]:
    there = _found(results, scenario).get("time model")
    if there is None:
        return []
    drawn = f"ablations-staleness-{scenario.removesuffix('-ablation')}"
    shown: Any = {"smoke": results.smoke, "ncols": len(there), "squeeze": False, "sharex": True}
    with figure(folder, drawn, PAGE, 2.2, **shown) as axes:
        for own, (name, trials) in zip(axes[0], there.items(), strict=True):
            histogram(own, np.concatenate([staleness(kept) for kept in trials]))
            limits(own, trials[0], [b for _, b in PAIRS])
            own.set_title(f"{name}\n({fmean(kept.end['deprecated'] for kept in trials):.0%} above tau_0)")
        axes[0][0].set_ylabel(f"share of uploads,\n{title}")
        legend(axes[0][0], ncols=4)
    return [drawn]
