"""Accuracy over time: clients before and after the reply, and clusters, session by session.

Claim: the paper's (section 5.2, figures 3 and 4, appendix C): replies overtake what clients train themselves after a
few sessions on FashionMNIST, and from very early on with harder data; its appendix has pictures of one cluster, too.
Settings: `paper-reading`, CDFL and FedSoft-Async; the runs of Table 1, and one-cluster runs as in the appendix.
Clusters are scored once a session, not after every epoch as in the paper's pictures.
Machine: one H200; seconds stand beside the results. Cost: none beyond Table 1 but the one-cluster runs, 10 a dataset:
about two minutes for FashionMNIST, three for CIFAR-10.

    cdfl paper over_time --rows fashion-mnist-1,fashion-mnist-4
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from cdfl.paper import EVERY_ROW, Cell, Kept, Results, Row
from cdfl.paper.compare import named, on_rows
from cdfl.paper.figures import COLORS, COLUMN, GREY, LABELS, LINES, PAGE, figure, legend, wrapped
from cdfl.paper.rows import footnote
from cdfl.paper.tables import NOTHING, number, provenance, span, table

NUMBER, TRIALS = 2, 5
SMOKE_ROWS = ("fashion-mnist-1", "fashion-mnist-4")
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
WORDS = (
    "A session is as many uploads as there are clients; means over trials. *Ahead from*: the first session from which "
    "the reply is better than the upload in every one. *Lowest*: of the mean over trials.\n"
)


def cells(trials: int) -> list[Cell]:
    """Both algorithms in every row."""
    return [
        Cell(row.scenario, "paper-reading", algorithm, seed)
        for row in ROWS
        for algorithm in ALGORITHMS
        for seed in range(trials)
    ]


def report(results: Results) -> str:
    """When replies overtake local training, and how far clusters come."""
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
    return "\n".join([WORDS, table(header, rows), *footnote(there), provenance(used)])


def overtakes(trials: list[Kept]) -> int | None:
    """The first session from which the reply is better than the upload to the end; None: it is not at the end."""
    before, after = curve(trials, "sessions", "before"), curve(trials, "sessions", "after")
    behind = np.flatnonzero(after <= before)
    first = int(behind[-1]) + 2 if len(behind) else 1
    return first if first <= len(after) else None


def _line(trials: list[Kept]) -> list[str]:
    before, after = curve(trials, "sessions", "before"), curve(trials, "sessions", "after")
    clusters = curve(trials, "clusters", "accuracy")
    way = map(number, (clusters[0], clusters.min(), clusters[len(clusters) // 2], clusters[-1]))
    counts = [str(len(trials)), str(len(after)), str(overtakes(trials) or NOTHING)]
    return [*counts, number(after[-1] - before[-1]), *way]


def verdict(results: Results) -> str:
    """When replies overtake uploads, and where clusters go."""
    there = {row: trials for row in ROWS if (trials := results.trials(row.scenario, "paper-reading"))}
    lines = []
    for own, where in ((True, "The paper's data"), (False, "Data that stand in for the paper's (†)")):
        rows = {row.title: trials for row, trials in there.items() if (row.stand_in is None) is own}
        if rows:
            when = named(f"{title}: {overtakes(trials) or 'never'}" for title, trials in rows.items())
            ways = named(f"{title}: {_way(trials)}" for title, trials in rows.items())
            lines.append(f"- {where}, replies ahead from session: {when}; clusters: {ways}\n")
    if not lines:
        return "Accuracy over time has not been run yet.\n"
    few = {row.title: str(len(trials)) for row, trials in there.items() if len(trials) < TRIALS}
    if few:
        lines.append(f"- Trials, where they are not {TRIALS}: {on_rows(few)}\n")
    words = "CDFL with `paper-reading`: the session from which its replies are better than uploads for good, and the "
    return f"{words}accuracy of clusters after pre-training, at its lowest and at the end.\n\n{''.join(lines)}"


def _way(trials: list[Kept]) -> str:
    clusters = curve(trials, "clusters", "accuracy")
    return " → ".join(map(number, (clusters[0], clusters.min(), clusters[-1])))


def curve(trials: list[Kept], part: str, name: str) -> np.ndarray:
    """The mean of one curve over trials."""
    curves = [kept.digest[part][name] for kept in trials]
    length = min(map(len, curves))
    return np.array([fmean(values) for values in zip(*(one[:length] for one in curves), strict=True)])


def draw(results: Results, folder: Path) -> list[str]:
    """One picture a family of rows: clients above, how far CDFL is ahead in the middle, clusters below."""
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


LEAD_FROM = 6  # sessions: the first replies are so far apart that nothing else could be seen beside them
YLABELS = (
    "client accuracy",
    f"client accuracy,\nCDFL - FedSoft-Async\nfrom session {LEAD_FROM} on",
    "cluster accuracy",
)


def _panels(axes, results: Results, row: Row) -> None:
    """What clients have, how far CDFL is ahead in it, what clusters have."""
    clients, lead, clusters = axes
    there = {name: results.trials(row.scenario, "paper-reading", name) for name in ALGORITHMS}
    for name in ("after", "before"):
        for algorithm, trials in there.items():
            if trials:
                at, curves = _curves(trials, name)
                style: Any = {"color": COLORS[algorithm], "label": f"{LABELS[algorithm]}, {name}"}
                clients.plot(at, curves.mean(axis=0), LINES[name], **style)
        _lead(lead, *there.values(), name)
    for algorithm, trials in there.items():
        if trials:
            _with_band(clusters, *_curves(trials, "cluster"), color=COLORS[algorithm])
    clients.set(title=wrapped(row.title, 16))
    clusters.set(xlabel="session")


def _lead(axes, ours: list[Kept], theirs: list[Kept], name: str) -> None:
    """How far our curves are above theirs, seed by seed, after the first sessions."""
    axes.axhline(0, color=GREY, lw=0.5)
    pairs = [(kept, other) for kept in ours for other in theirs if kept.cell.seed == other.cell.seed]
    if pairs:
        (at, first), (_, second) = (_curves(trials, name) for trials in zip(*pairs, strict=True))
        length = min(first.shape[1], second.shape[1])
        shown = [place for place in range(length) if at[place] >= LEAD_FROM]
        _with_band(axes, at[shown], first[:, shown] - second[:, shown], ls=LINES[name], color=GREY)


def _curves(trials: Sequence[Kept], name: str) -> tuple[np.ndarray, np.ndarray]:
    """The sessions at which something was measured, and what was, (trials, sessions)."""
    part, at, column = ("clusters", "epoch", "accuracy") if name == "cluster" else ("sessions", "upload", name)
    length = min(len(kept.digest[part][at]) for kept in trials)
    epochs = np.array(trials[0].digest[part][at][:length])
    clients = trials[0].record["config"]["scenario"]["num_clients"]
    return epochs / clients, np.array([kept.digest[part][column][:length] for kept in trials])


def _with_band(axes, at: np.ndarray, curves: np.ndarray, **style: Any) -> None:
    """A mean over trials, with its deviation around it where there are several."""
    mean = curves.mean(axis=0)
    axes.plot(at, mean, **style)
    if len(curves) > 1:
        spread = curves.std(axis=0, ddof=1)
        axes.fill_between(at, mean - spread, mean + spread, color=style["color"], alpha=0.2, lw=0, label="± SD")
