"""Accuracy over time, session by session.

Claim: the paper's (section 5.2, figures 3 and 4, appendix C): replies overtake local training after a few sessions.
Settings: `paper-reading`, CDFL and FedSoft-Async; the runs of Table 1, and runs with one cluster.
Cost: 3 minutes on one H200 for each dataset with one cluster.

    cdfl paper over_time --rows fashion-mnist-1,fashion-mnist-4
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from experiments.harness import EVERY_ROW, Experiment, Results, Row, RunKey, StoredRun
from experiments.harness.figure_style import COLORS, COLUMN, GREY, LABELS, LINES, PAGE, WORDS, figure, legend, wrapped
from experiments.harness.tables import NOTHING, number, provenance, span, stand_ins, table

ALGORITHMS = ("cdfl", "fedsoft")
ONE_CLUSTER = (
    Row("FashionMNIST (1)", "", "fashion-mnist-1"),
    Row("CIFAR-100 (1)", "", "cifar-10-1", "CIFAR-10 (1)"),
)
ROWS = sorted((*ONE_CLUSTER, *EVERY_ROW), key=lambda row: row.scenario)
FAMILIES = {
    family: [row for row in ROWS if row.scenario.startswith(family)]
    for family in ("fashion-mnist", "cifar-10", "mini-imagenet", "digit-recognition")
}
NOTE = (
    "Means over trials. A session has as many uploads as there are clients. *Ahead from*: first session from which the "
    "reply is always better than the upload.\n"
)


def run_keys(trials: int) -> list[RunKey]:
    """Return both algorithms in every row."""
    return [
        RunKey(row.scenario, "paper-reading", algorithm, seed)
        for row in ROWS
        for algorithm in ALGORITHMS
        for seed in range(trials)
    ]


def report(results: Results) -> str:
    """Return when replies overtake local training, and how clusters develop."""
    rows, there, used = [], [], []
    for row in ROWS:
        for algorithm in ALGORITHMS:
            trials = results.trials(row.scenario, "paper-reading", algorithm)
            if trials:
                there.append(row)
                used += trials
                rows.append([row.title, LABELS[algorithm], *_line(trials)])
    header = ["row", "algorithm", "trials", "sessions", "reply ahead from session", "reply ahead at the end by"]
    header += ["clusters, start", "lowest", "half way", "end"]
    return "\n".join([NOTE, table(header, rows), *stand_ins(there), provenance(used)])


def overtakes(trials: list[StoredRun]) -> int | None:
    """Return the first session from which the reply is always better than the upload; None if there is none."""
    before, after = curve(trials, "sessions", "before"), curve(trials, "sessions", "after")
    behind = np.flatnonzero(after <= before)
    first = int(behind[-1]) + 2 if len(behind) else 1
    return first if first <= len(after) else None


def _line(trials: list[StoredRun]) -> list[str]:
    before, after = curve(trials, "sessions", "before"), curve(trials, "sessions", "after")
    clusters = curve(trials, "clusters", "accuracy")
    way = map(number, (clusters[0], clusters.min(), clusters[len(clusters) // 2], clusters[-1]))
    counts = [str(len(trials)), str(len(after)), str(overtakes(trials) or NOTHING)]
    return [*counts, number(after[-1] - before[-1]), *way]


def curve(trials: list[StoredRun], part: str, name: str) -> np.ndarray:
    """Return the mean of one curve over trials."""
    curves = [kept.summary[part][name] for kept in trials]
    length = min(map(len, curves))
    return np.array([fmean(values) for values in zip(*(one[:length] for one in curves), strict=True)])


def draw(results: Results, folder: Path) -> list[str]:
    """Draw each family of rows: clients above, CDFL's lead in the middle, clusters below."""
    drawn = []
    for family, rows in FAMILIES.items():
        there = [row for row in rows if results.trials(row.scenario, "paper-reading")]
        if not there:
            continue
        name, width = f"over_time-{family}", max(COLUMN, PAGE / 5 * len(there))
        grid: Any = {"nrows": 3, "ncols": len(there), "sharex": "col", "sharey": "row", "squeeze": False}
        with figure(folder, name, width, 5.1, smoke=results.smoke, **grid) as axes:
            for column, row in zip(axes.T, there, strict=True):
                _panels(column, results, row)
            for own, label in zip(axes[:, 0], YLABELS, strict=True):
                own.set_ylabel(label)
            trials = span(len(results.trials(row.scenario, "paper-reading")) for row in there)
            legend(axes[0][0], ncols=5 if len(there) > 3 else 2, title=f"paper-reading, trials: {trials}")
        drawn.append(name)
    return drawn


LEAD_FROM = 6  # sessions; earlier replies differ so much that they would hide the rest
YLABELS = (
    "client accuracy",
    f"client accuracy,\nCDFL - FedSoft-Async\nfrom session {LEAD_FROM} on",
    "cluster accuracy",
)


def _panels(axes: Any, results: Results, row: Row) -> None:
    clients, lead, clusters = axes
    there = {name: results.trials(row.scenario, "paper-reading", name) for name in ALGORITHMS}
    for name in ("after", "before"):
        for algorithm, trials in there.items():
            if trials:
                at, curves = _curves(trials, name)
                style: Any = {"color": COLORS[algorithm], "label": f"{LABELS[algorithm]}, {WORDS[name]}"}
                clients.plot(at, curves.mean(axis=0), LINES[name], **style)
        _lead(lead, there["cdfl"], there["fedsoft"], name)
    for algorithm, trials in there.items():
        if trials:
            _with_band(clusters, *_curves(trials, "cluster"), color=COLORS[algorithm])
    clients.set(title=wrapped(row.title, 16))
    clusters.set(xlabel="session")


def _lead(axes: Any, ours: list[StoredRun], theirs: list[StoredRun], name: str) -> None:
    """Draw how far our curves are above theirs, seed by seed, after the first sessions."""
    axes.axhline(0, color=GREY, lw=0.5)
    pairs = [(kept, other) for kept in ours for other in theirs if kept.key.seed == other.key.seed]
    if pairs:
        at, first = _curves([kept for kept, _ in pairs], name)
        _, second = _curves([other for _, other in pairs], name)
        length = min(first.shape[1], second.shape[1])
        shown = [place for place in range(length) if at[place] >= LEAD_FROM]
        _with_band(axes, at[shown], first[:, shown] - second[:, shown], ls=LINES[name], color=GREY)


def _curves(trials: Sequence[StoredRun], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the sessions of a curve, and its values (trials, sessions)."""
    part, at, column = ("clusters", "epoch", "accuracy") if name == "cluster" else ("sessions", "upload", name)
    length = min(len(kept.summary[part][at]) for kept in trials)
    epochs = np.array(trials[0].summary[part][at][:length])
    clients = trials[0].record["config"]["scenario"]["num_clients"]
    return epochs / clients, np.array([kept.summary[part][column][:length] for kept in trials])


def _with_band(axes: Any, at: np.ndarray, curves: np.ndarray, **style: Any) -> None:
    """Draw a mean over trials, with a band of its deviation if there are several."""
    mean = curves.mean(axis=0)
    axes.plot(at, mean, **style)
    if len(curves) > 1:
        spread = curves.std(axis=0, ddof=1)
        axes.fill_between(at, mean - spread, mean + spread, color=style["color"], alpha=0.2, lw=0, label="± SD")


EXPERIMENT = Experiment(
    "over_time", __doc__, report, draw, run_keys, trials=5, smoke_rows=("fashion-mnist-1", "fashion-mnist-4")
)
