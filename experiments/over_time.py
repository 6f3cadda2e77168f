"""Accuracy over time: clients before and after the reply session by session, clusters epoch by epoch.

Claim: the paper's: replies overtake what clients train themselves after a few sessions on FashionMNIST, and from the
start on harder data; with one cluster the same holds.
Settings: `paper-reading`, CDFL and FedSoft-Async; the runs of Table 1, and one-cluster runs as in the appendix.
Machine: one H200; seconds stand beside the results. Cost: none beyond Table 1 but the one-cluster runs, 10 a dataset:
about two minutes for FashionMNIST, three for CIFAR-10.

    cdfl paper over_time --rows fashion-mnist-1,fashion-mnist-4
"""

from pathlib import Path
from statistics import fmean

import numpy as np

from cdfl.paper import EVERY_ROW, Cell, Kept, Results, Row
from cdfl.paper.compare import named
from cdfl.paper.figures import COLORS, COLUMN, LABELS, PAGE, figure, legend
from cdfl.paper.rows import footnote
from cdfl.paper.tables import NOTHING, number, provenance, table

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
    "A session is as many uploads as there are clients; means over trials. *Ahead from*: the first session after which "
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
    """One picture a family of rows: clients above, clusters below."""
    drawn = []
    for family, rows in FAMILIES.items():
        there = [row for row in rows if results.trials(row.scenario, "paper-reading")]
        if not there:
            continue
        name, width = f"over_time-{family}", max(COLUMN, PAGE / 5 * len(there))
        with figure(folder, name, width, 3.2, nrows=2, ncols=len(there), sharey="row", squeeze=False) as axes:
            for place, row in enumerate(there):
                _panel(axes[0][place], axes[1][place], results, row)
            axes[0][0].set_ylabel("client accuracy")
            axes[1][0].set_ylabel("cluster accuracy")
            legend(axes[0][0], ncols=4 if len(there) > 2 else 2)
        drawn.append(name)
    return drawn


def _panel(clients, clusters, results: Results, row: Row) -> None:
    for algorithm in ALGORITHMS:
        trials = results.trials(row.scenario, "paper-reading", algorithm)
        if not trials:
            continue
        color, label = COLORS[algorithm], LABELS[algorithm]
        for name, style in (("after", "-"), ("before", ":")):
            values = curve(trials, "sessions", name)
            clients.plot(np.arange(1, len(values) + 1), values, style, color=color, label=f"{label}, {name}")
        values = curve(trials, "clusters", "accuracy")
        clusters.plot(trials[0].digest["clusters"]["epoch"][: len(values)], values, color=color)
    clients.set(title=row.title, xlabel="session")
    clusters.set(xlabel="epoch")
