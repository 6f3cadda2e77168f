"""Ablations: one setting changed at a time, 4 clusters and 100 clients.

Claim: the paper's: proxy sets of 500 images are enough, more clients change little (here each of many uploads less
often, as uploads are 2,000 in all), and a small rho serves clusters. What the paper does not vary: one cluster, no
drift, who is there when, and a fixed tau_0 while clients grow.
Settings: CDFL in `paper-reading` with one change; time models also in `default`. 2,000 uploads on FashionMNIST, 1,000
on CIFAR-10, which stands in for CIFAR-100.
Machine: one H200; seconds stand beside the results. Cost: about 30 settings of 3 runs for each of the two rows.

    cdfl paper ablations --rows fashion-mnist-4-ablation
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from cdfl.paper import Cell, Results
from cdfl.paper.figures import COLORS, PAGE, figure, legend
from cdfl.paper.rows import COLUMNS
from cdfl.paper.tables import number, provenance, spread, table
from cdfl.sim.clock import TIME_MODELS
from cdfl.sim.presets import find_preset

NUMBER, TRIALS = 5, 3
SMOKE_ROWS = ("fashion-mnist-4-ablation", "fashion-mnist-1")
SCENARIOS = {"fashion-mnist-4-ablation": "FashionMNIST (4)", "cifar-10-4-ablation": "CIFAR-10 (4) †"}
ONE_CLUSTER = {"fashion-mnist-4-ablation": "fashion-mnist-1", "cifar-10-4-ablation": "cifar-10-1"}
SIZE = {
    "fashion-mnist-1": {"num_clients": 100, "num_uploads": 2000},
    "cifar-10-1": {"num_clients": 100, "num_uploads": 1000},
}
CLIENTS = (100, 250, 500, 1000)
PAIRS = ((10, 5), (1, 5), (10, 3), (1, 3), (10, 20))

# Question -> what a line is called -> changes. An empty change is the base of all of them.
QUESTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "size of proxy set": {str(size): {"proxy": size} if size != 1000 else {} for size in (500, 1000, 2000, 4000)},
    "number of clients": {str(many): {"num_clients": many} if many != 100 else {} for many in CLIENTS},
    "number of clients, tau_0 = 100": {
        str(many): {"num_clients": many, "max_staleness": 100} if many != 100 else {} for many in CLIENTS
    },
    "rho": {str(rho): {"proximal_strength": rho} if rho != 0.1 else {} for rho in (0.01, 0.1, 0.5, 1.0)},
    "(a, b)": {
        f"({a}, {b})": {"staleness_slope": a, "staleness_grace": b} if (a, b) != PAIRS[0] else {} for a, b in PAIRS
    },
    "(a, b), uniform uploads": {
        f"({a}, {b})": {"time_model": "uniform", "staleness_slope": a, "staleness_grace": b}
        for a, b in ((10, 5), (1, 5), (10, 200))
    },
    "drift": {
        "the paper's": {},
        "none": {"drift": "static"},
        "uneven others": {"drift": {"kind": "paper", "rest": "uneven"}},
    },
}


def times(preset: str) -> dict[str, dict[str, Any]]:
    """The simple time models; that of the preset is no change."""
    usual = find_preset(preset).time_model
    return {
        name: {} if model == usual else {"time_model": name} for name, model in TIME_MODELS.items() if name != "devices"
    }


def cells(trials: int) -> list[Cell]:
    """Every change, each once; time models in two presets; one cluster instead of four."""
    found = {}
    for scenario in SCENARIOS:
        one = ONE_CLUSTER[scenario]
        asked = [(scenario, "paper-reading", changes) for lines in QUESTIONS.values() for changes in lines.values()]
        asked += [(scenario, "default", changes) for changes in times("default").values()]
        asked += [(scenario, "paper-reading", changes) for changes in times("paper-reading").values()]
        asked.append((one, "paper-reading", SIZE[one]))
        for name, preset, changes in asked:
            for seed in range(trials):
                cell = Cell(name, preset, "cdfl", seed, changes)
                found[cell.key] = cell
    return list(found.values())


def report(results: Results) -> str:
    """A table for each question."""
    parts, used = [], []
    for scenario, title in SCENARIOS.items():
        lines = []
        for question, preset, name, where, changes in _lines(scenario):
            trials = results.trials(where, preset, "cdfl", changes)
            if trials:
                used += trials
                values = [
                    [kept.end[column] for kept in trials] for column in (*COLUMNS, "divergence", "deprecated", "rate")
                ]
                lines.append([question, name, str(len(trials)), *map(spread, values)])
        if lines:
            header = ["question", "value", "trials", *COLUMNS, "KL", "deprecated", "mean rate"]
            parts += [f"**{title}**\n", table(header, lines)]
    words = (
        "*Deprecated*: share of uploads older than tau_0, which move nothing. *Mean rate*: how far the cluster that "
    )
    words += "moves most goes to an upload. † stands in for CIFAR-100, which is not at hand.\n"
    return "\n".join([*parts, words, provenance(used)])


def _lines(scenario: str) -> list[tuple[str, str, str, str, Mapping[str, Any]]]:
    """Question, preset, value, where it is run, changes."""
    lines: list[tuple[str, str, str, str, Mapping[str, Any]]] = [
        (question, "paper-reading", name, scenario, changes)
        for question, values in QUESTIONS.items()
        for name, changes in values.items()
    ]
    one = ONE_CLUSTER[scenario]
    lines.append(("clusters", "paper-reading", "1", one, SIZE[one]))
    lines.append(("clusters", "paper-reading", "4", scenario, {}))
    for preset, title in (("paper-reading", "time model"), ("default", "time model, `default`")):
        lines += [(title, preset, name, scenario, changes) for name, changes in times(preset).items()]
    return lines


def verdict(results: Results) -> str:
    """How much the accuracy of replies changes over the values of each question."""
    scenario = next(iter(SCENARIOS))
    asked = {question: ("paper-reading", values) for question, values in QUESTIONS.items()}
    asked |= {f"time model, `{preset}`": (preset, times(preset)) for preset in ("paper-reading", "default")}
    ranges = []
    for question, (preset, values) in asked.items():
        means = [
            fmean(found) for c in values.values() if (found := results.values("after", scenario, preset, "cdfl", c))
        ]
        if len(means) > 1:
            ranges.append(f"{question} {number(max(means) - min(means))}")
    if not ranges:
        return "Ablations have not been run yet.\n"
    return f"Between the best and the worst value, the accuracy after the reply differs by: {'; '.join(ranges)}.\n"


def draw(results: Results, folder: Path) -> list[str]:
    """Accuracies over the paper's four questions, and staleness under each time model."""
    drawn = []
    asked = ("size of proxy set", "number of clients", "rho", "(a, b)")
    for scenario, title in SCENARIOS.items():
        if not results.trials(scenario, "paper-reading"):
            continue
        name = f"ablations-{scenario.removesuffix('-ablation')}"
        with figure(folder, name, PAGE, 1.8, ncols=len(asked), sharey=True) as axes:
            for place, question in enumerate(asked):
                _accuracies(axes[place], results, scenario, question)
            axes[0].set_ylabel(f"accuracy, {title}")
            legend(axes[0], ncols=3)
        drawn.append(name)
        drawn += _staleness(results, scenario, folder)
    return drawn


def _accuracies(axes, results: Results, scenario: str, question: str) -> None:
    for column, marker, color in zip(COLUMNS, "os^", (COLORS["local"], COLORS["cdfl"], COLORS["fedsoft"]), strict=True):
        there = [
            (place, fmean(values))
            for place, changes in enumerate(QUESTIONS[question].values())
            if (values := results.values(column, scenario, "paper-reading", "cdfl", changes))
        ]
        axes.plot([at for at, _ in there], [mean for _, mean in there], marker + "-", color=color, label=column)
    axes.set_xticks(range(len(QUESTIONS[question])), list(QUESTIONS[question]))
    axes.tick_params(axis="x", labelsize=6)
    axes.set(title=question)


def _staleness(results: Results, scenario: str, folder: Path) -> list[str]:
    there = {
        name: trials
        for name, changes in times("paper-reading").items()
        if (trials := results.trials(scenario, "paper-reading", "cdfl", changes))
    }
    if not there:
        return []
    drawn = f"ablations-staleness-{scenario.removesuffix('-ablation')}"
    with figure(folder, drawn, PAGE, 1.6, ncols=len(there), sharey=True, squeeze=False) as axes:
        for place, (name, trials) in enumerate(there.items()):
            for (first, last), share in _histogram([kept.end["staleness"] for kept in trials]).items():
                axes[0][place].bar(first, share, last + 1 - first, align="edge", color=COLORS["cdfl"])
            axes[0][place].set(title=name, xlabel="staleness of an upload")
        axes[0][0].set_ylabel("share of uploads")
    return [drawn]


def _histogram(counts: list[Mapping[str, int]]) -> dict[tuple[int, int], float]:
    """The share of uploads in every bin, (first, last) staleness."""
    together: Counter[str] = Counter()
    for own in counts:
        together.update(own)
    edges = {name: tuple(map(int, name.split("-"))) for name in together}
    return {(first, last): together[name] / together.total() for name, (first, last) in edges.items()}
