"""Table 1: accuracy of clients before and after the reply, and of clusters, in 13 rows.

Claim: with one reading of what the paper leaves open, found on FashionMNIST (4) alone, CDFL, FedSoft-Async and Local
give the figures of Table 1; with settings of our own, CDFL gives better ones.
Settings: `paper-reading`, the paper's algorithms; `default`, all algorithms; `paper`, the printed values, CDFL alone.
Machine: one H200 for full runs; seconds stand beside the results. Cost: 60 runs a row; 12 with `--trials 1`.

    cdfl paper table1 --rows fashion-mnist-4 --trials 5
"""

from pathlib import Path
from statistics import fmean

from cdfl.algorithms import ALGORITHMS
from cdfl.paper import EVERY_ROW, Cell, Results, Row, row_cells
from cdfl.paper.figures import COLORS, COLUMN, MARKERS, PALE, figure, is_smoke, legend, means
from cdfl.paper.rows import COLUMNS, LOCAL, footnote
from cdfl.paper.tables import distance, printed, provenance, signed, spread, table

NUMBER, TRIALS = 1, 5
SMOKE_ROWS = ("fashion-mnist-4", "cifar-10-2")
BESIDE_THE_PAPER = {"cdfl": "CDFL", "fedsoft": "FedSoft-Async", LOCAL: "Local"}
RIVALS = {"fedasync": "FedAsync", "fedbuff": "FedBuff", "ifca": "IFCA", "local": "Local, keeps", "oracle": "Oracle"}
SAME, OTHER = [[row for row in EVERY_ROW if (row.stand_in is None) is same] for same in (True, False)]


def cells(trials: int) -> list[Cell]:
    """What is compared with the paper first, then our own columns."""
    algorithms = {"paper-reading": list(BESIDE_THE_PAPER), "default": list(ALGORITHMS), "paper": ["cdfl"]}
    return row_cells(algorithms, trials)


def report(results: Results) -> str:
    """Three tables beside the paper's figures, one of our own columns, and what they come to."""
    mine = [kept for kept in results if not kept.cell.changes and kept.cell.scenario in {r.scenario for r in EVERY_ROW}]
    parts = [
        "Mean ± deviation over trials. Δ: distance from the paper's mean, in the paper's deviations. *Local*: a client "
        "trains anew from the common start when its data change; *Local, keeps*: it goes on with the model it has.\n"
    ]
    for algorithm, title in BESIDE_THE_PAPER.items():
        parts += [f"**{title}**, `paper-reading`\n", _beside(results, algorithm)]
    for preset, algorithms in (("default", ["cdfl", "fedsoft", *RIVALS]), ("paper", ["cdfl"])):
        ours = _ours(results, preset, algorithms)
        if ours is not None:
            title = "CDFL with the printed values" if preset == "paper" else "What the paper does not have"
            parts += [f"**{title}**, `{preset}`; the last column has the trials of each\n", ours]
    there = [row for row in EVERY_ROW if any(kept.cell.scenario == row.scenario for kept in mine)]
    parts += [*footnote(there), verdict(results), provenance(mine)]
    return "\n".join(parts)


def _beside(results: Results, algorithm: str) -> str:
    columns = COLUMNS if algorithm != LOCAL else COLUMNS[:1]
    header = ["row", "trials", *(part for column in columns for part in (column, "paper", "Δ"))]
    rows = []
    for row in EVERY_ROW:
        trials = results.trials(row.scenario, "paper-reading", algorithm)
        line = [row.title, str(len(trials))]
        for column in columns:
            values, figure = _values(results, row, column, algorithm), _figure(row, algorithm, column)
            line += [spread(values), printed(figure), signed(distance(values, figure))]
        if trials:
            rows.append(line)
    return table(header, rows)


def _ours(results: Results, preset: str, algorithms: list[str]) -> str | None:
    """A line for each row and figure, a column for each algorithm; None where nothing was run."""
    lines = []
    for row in EVERY_ROW:
        trials = [len(results.trials(row.scenario, preset, name)) for name in algorithms]
        for column in COLUMNS if any(trials) else ():
            values = [results.values(column, row.scenario, preset, name) for name in algorithms]
            lines.append([row.title, column, *map(spread, values), ", ".join(map(str, trials))])
    titles = [(BESIDE_THE_PAPER | RIVALS)[name] for name in algorithms]
    return table(["row", "", *titles, "trials"], lines) if lines else None


def verdict(results: Results) -> str:
    """How many figures are as near as we asked for, and how many orders hold."""
    distances = [
        away
        for row in SAME
        for column in COLUMNS
        if (away := distance(_values(results, row, column), _figure(row, "cdfl", column))) is not None
    ]
    counts = {
        "figures of CDFL with `paper-reading` within two of the paper's deviations": [abs(d) <= 2 for d in distances]
    }
    for rival in ("fedsoft", LOCAL):
        above = f"figures with `paper-reading` in which CDFL is above {BESIDE_THE_PAPER[rival]}"
        counts[f"{above}, of those where the paper says so"] = _orders(results, rival)
    counts["figures of CDFL with `default` above the paper's"] = [
        fmean(values) > figure.mean
        for row in SAME
        for column in COLUMNS
        if (values := results.values(column, row.scenario, "default")) and (figure := _figure(row, "cdfl", column))
    ]
    for rival, title in {"local": RIVALS["local"], "fedsoft": "FedSoft-Async", **RIVALS}.items():
        counts[f"rows with `default` in which CDFL is above {title} after the reply"] = [
            fmean(ours) > fmean(theirs)
            for row in EVERY_ROW
            if (ours := results.values("after", row.scenario, "default"))
            and (theirs := results.values("after", row.scenario, "default", rival))
        ]
    lines = [f"- {what}: {sum(held)} of {len(held)}" for what, held in counts.items() if held]
    return "\n".join(lines or ["Table 1 has not been run yet."]) + "\n"


def _orders(results: Results, rival: str) -> list[bool]:
    """For each figure in which the paper has CDFL above a rival: whether we have."""
    held = []
    for row in SAME:
        for column in COLUMNS if rival != LOCAL else COLUMNS[:2]:
            ours, theirs = _values(results, row, column), _values(results, row, column, rival)
            figure, other = _figure(row, "cdfl", column), _figure(row, rival, column)
            if ours and theirs and figure and other and figure.mean > other.mean:
                held.append(fmean(ours) > fmean(theirs))
    return held


def _values(results: Results, row: Row, column: str, algorithm: str = "cdfl") -> list[float]:
    return results.values(column, row.scenario, "paper-reading", algorithm)


def _figure(row: Row, algorithm: str, column: str):
    """The published figure, unless our data are others."""
    return None if row.stand_in else row.published("local" if algorithm == LOCAL else algorithm, column)


def draw(results: Results, folder: Path) -> list[str]:
    """CDFL's figures on the paper's own data: the paper's bars, and our means in two presets."""
    if not any(results.trials(row.scenario, "paper-reading") for row in SAME):
        return []
    with figure(folder, "table1", COLUMN, 2.4, smoke=is_smoke(results), ncols=3, sharey=True) as axes:
        for place, column in enumerate(COLUMNS):
            _panel(axes[place], results, column)
        axes[0].set_ylabel("accuracy of CDFL")
        axes[1].set_xlabel("FashionMNIST, number of clusters")
        legend(axes[0], ncols=3)
    return ["table1"]


def _panel(axes, results: Results, column: str) -> None:
    axes.use_sticky_edges = False  # else the lowest bar looks cut
    for at, row in enumerate(SAME):
        mean, deviation = row.published("cdfl", column)
        label = "paper ± 2 SD" if at == 0 else None
        axes.bar(at, 4 * deviation, 0.7, mean - 2 * deviation, color=PALE, label=label)
        axes.plot([at - 0.35, at + 0.35], [mean, mean], color="white", lw=0.8)
    for preset in ("paper-reading", "default"):
        trials = [results.values(column, row.scenario, preset) for row in SAME]
        means(axes, range(len(SAME)), trials, ls="", color=COLORS["cdfl"], label=preset, **MARKERS[preset])
    axes.set_xticks(range(len(SAME)), [row.printed.split("(")[1][:-1] for row in SAME])
    axes.set(title=column)
