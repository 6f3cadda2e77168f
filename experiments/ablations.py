"""Ablations: one setting changed at a time, 4 clusters and 100 clients.

Claim: the paper's: proxy sets of 500 images are enough, more clients change little (here each of many uploads less
often, as uploads are 2,000 in all), and a small rho serves clusters. What the paper does not vary: one cluster, no
drift, who is there when, and a fixed tau_0 while clients grow.
Settings: CDFL in `paper-reading` with one change; time models also in `default`. 2,000 uploads on FashionMNIST, 1,000
on CIFAR-10, which stands in for CIFAR-100.
Machine: one H200; seconds stand beside the results. Cost: about 30 settings of 3 runs for each of the two rows;
about six minutes for FashionMNIST, six processes side by side.

    cdfl paper ablations --rows fashion-mnist-4-ablation
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from cdfl.paper import Cell, Results
from cdfl.paper.compare import grouped
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
CHANGES_LITTLE = {  # what the paper says of a value: it gives about what others give
    "size of proxy set": ("500", "proxy sets of 500 are enough"),
    "number of clients": ("1000", "more clients change little"),
}

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
        for question, preset, name, where, changes in _lines(scenario):
            trials = results.trials(where, preset, "cdfl", changes)
            if trials:
                used += trials
                values = [[kept.end[column] for kept in trials] for column in NUMBERS]
                lines.append([question, name, str(len(trials)), *map(spread, values)])
        if lines:
            parts += [f"**{title}**\n", table(["question", "value", "trials", *NUMBERS.values()], lines)]
    stand_in = " † stands in for CIFAR-100, which is not at hand." if any("†" in part for part in parts) else ""
    return "\n".join([*parts, WORDS + stand_in + "\n", verdict(results), provenance(used)])


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
    """Whether the paper's three claims hold, and the best and the worst value of each question."""
    lines = []
    for scenario, title in SCENARIOS.items():
        means = _means(results, scenario)
        lines += [f"- {title}, {told}\n" for told in (*_claims(means), *_extremes(means))]
    return "".join(lines) or "Ablations have not been run yet.\n"


Means = Mapping[str, Mapping[str, Mapping[str, float]]]  # question -> value -> accuracy, mean over trials


def _means(results: Results, scenario: str) -> Means:
    means: dict[str, dict[str, dict[str, float]]] = {}
    for question, preset, name, where, changes in _lines(scenario):
        trials = results.trials(where, preset, "cdfl", changes)
        if trials:
            own = {column: fmean(kept.end[column] for kept in trials) for column in COLUMNS}
            means.setdefault(question, {})[name] = own
    return means


def _claims(means: Means) -> list[str]:
    """What became of the paper's claims, as far as they can be told."""
    told = []
    for question, (value, claim) in CHANGES_LITTLE.items():
        others = dict(means.get(question, {}))
        own = others.pop(value, None)
        if own and others:
            away = {column: max(abs(own[column] - other[column]) for other in others.values()) for column in COLUMNS}
            ways = {
                f"{name} ({number(most)})": "holds for" if most <= LITTLE else "not for" for name, most in away.items()
            }
            parts = [f"{way} {', '.join(names)}" for way, names in grouped(ways).items()]
            told.append(f"{claim} ({value} within {number(LITTLE)} of {', '.join(others)}): {', '.join(parts)}")
    rho = {name: own["cluster"] for name, own in means.get("rho", {}).items()}
    if len(rho) > 1:
        way = "holds" if list(rho.values()) == sorted(rho.values(), reverse=True) else "does not hold"
        listed = ", ".join(f"{name} ({number(cluster)})" for name, cluster in rho.items())
        told.append(f"a small rho serves clusters: {way}, {listed}")
    return told


def _extremes(means: Means) -> list[str]:
    told = []
    for question, values in means.items():
        after = {name: own["after"] for name, own in values.items()}
        best, worst = max(after, key=lambda name: after[name]), min(after, key=lambda name: after[name])
        if len(after) > 1:
            told.append(f"{question}: {best} {number(after[best])}, {worst} {number(after[worst])}")
    return [f"best and worst value after the reply: {'; '.join(told)}"] if told else []


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
