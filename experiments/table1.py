"""Table 1: accuracy of clients before and after the reply, and of clusters, in 13 rows.

Claim: with one reading of what the paper leaves open, found on FashionMNIST (4) alone, CDFL, FedSoft-Async and Local
give most figures of FashionMNIST in Table 1; with settings of our own, CDFL gives better ones.
Settings: `paper-reading`, the paper's algorithms; `default`, all algorithms (Local keeps its model); `paper`, the
printed values, CDFL alone. On request also the paper's own CIFAR-100 and MiniImageNet. MiniImageNet has a setting of
its own in `default`; CDFL and FedAsync are also run there without it.
Machine: one H200 for full runs; seconds stand beside the results. Cost: 55 runs a row, 11 with `--trials 1`; 65 and 13
for MiniImageNet. With several processes side by side 55 runs take three to seven minutes for FashionMNIST, about
seventeen for the digits; a run of ResNet-18 takes half a minute to two of the machine with `--processes 3 --precision
bfloat16`, one to three in tf32.

    cdfl paper table1 --rows fashion-mnist-4 --trials 5
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from cdfl.core import DEFAULT
from cdfl.paper import EVERY_ROW, Cell, Results, Row, row_cells
from cdfl.paper.compare import OUTCOMES, RULE, compare, differences, grouped, held, named, on_rows, tally
from cdfl.paper.figures import COLORS, LABELS, MARKERS, PAGE, PALE, figure, legend, means, rows_below
from cdfl.paper.rows import COLUMNS, FULL_ROWS, LOCAL, Figure, footnote
from cdfl.paper.tables import difference, distance, printed, provenance, span, spread, table
from cdfl.scenarios import load_scenario
from cdfl.scenarios.catalogue import NOISY

NUMBER, TRIALS = 1, 5
SMOKE_ROWS = ("fashion-mnist-4", "cifar-10-2")
ON_REQUEST = tuple(row.scenario for row in FULL_ROWS)
BESIDE_THE_PAPER = {"cdfl": "CDFL", "fedsoft": "FedSoft-Async", LOCAL: "Local"}
OURS = {
    "cdfl": "CDFL", "fedsoft": "FedSoft-Async", "fedasync": "FedAsync", "fedbuff": "FedBuff", "ifca": "IFCA",
    "local": "Local (keeps)", "oracle": "Oracle",
}  # fmt: skip
COLUMNS_OF = {"paper-reading": BESIDE_THE_PAPER, "default": OURS, "paper": {"cdfl": "CDFL"}}  # preset -> titles
RIVALS = [(preset, name) for preset, titles in COLUMNS_OF.items() for name in titles if name != "cdfl"]
OWN_COLUMNS = [(preset, algorithm) for preset in ("default", "paper") for algorithm in COLUMNS_OF[preset]]
ROWS = (*EVERY_ROW, *FULL_ROWS)
WITHOUT = {name: getattr(DEFAULT, name) for name in NOISY}  # MiniImageNet's own setting undone
NOISY_ROWS = [row for row in EVERY_ROW if load_scenario(row.scenario).settings.items() >= NOISY.items()]
PICTURED, OTHER = [[row for row in EVERY_ROW if (row.stand_in is None) is same] for same in (True, False)]
SAME = [*PICTURED, *FULL_ROWS]
WORDS = (
    "Mean ± deviation over trials; *difference*: from the paper's mean, in accuracy and (in brackets) in the paper's "
    "deviations. To the right of them our own columns. *Local*: a client trains anew from the common start when its "
    "data change; *Local (keeps)*: it goes on with the model it has; its clusters are those of pre-training. A figure "
    "without a deviation is of one trial, seed 0: to be compared with means of more only seed by seed, as below.\n"
)


def cells(trials: int) -> list[Cell]:
    """What is compared with the paper first, then our own columns, and MiniImageNet without its own setting."""
    asked = row_cells({preset: list(titles) for preset, titles in COLUMNS_OF.items()}, trials, ROWS)
    without = row_cells({"default": ["cdfl", "fedasync"]}, trials, NOISY_ROWS)
    return asked + [replace(cell, changes=WITHOUT) for cell in without]


def report(results: Results) -> str:
    """One table, the paper's figures and our own columns in it, and what it comes to."""
    rows = {row.scenario for row in ROWS}
    mine = [kept for kept in results if kept.cell.changes in ({}, WITHOUT) and kept.cell.scenario in rows]
    there = [row for row in ROWS if any(kept.cell.scenario == row.scenario for kept in mine)]
    header = ["row", "accuracy"]
    for title in BESIDE_THE_PAPER.values():
        header += [f"{title}, `paper-reading`", "paper", "difference"]
    header += [f"{OURS[algorithm]}, `{preset}`" for preset, algorithm in OWN_COLUMNS]
    lines = [_line(results, row, column) for row in there for column in COLUMNS]
    told = [] if results.smoke else [*_printed_for_others(), verdict(results), *_rivals(results)]
    notes = footnote(there if results.smoke else EVERY_ROW)  # the verdict names rows that were not run, too
    return "\n".join([WORDS, table([*header, "trials"], lines), *notes, *_without(results), *told, provenance(mine)])


def _line(results: Results, row: Row, column: str) -> list[str]:
    beside = [
        (_values(results, row, column, name), None if results.smoke else _figure(row, name, column))
        for name in BESIDE_THE_PAPER
    ]
    own = [results.values(column, row.scenario, *asked) for asked in OWN_COLUMNS]
    line = [row.title, column]
    for values, published in beside:
        line += [spread(values), printed(published), difference(values, published)]
    return [*line, *map(spread, own), span(map(len, [*(values for values, _ in beside), *own]))]


def _printed_for_others() -> list[str]:
    """A table of what the paper prints for the data that others stand in for."""
    asked = [*product(("cdfl", "fedsoft"), COLUMNS), (LOCAL, "before")]  # of Local it has one accuracy
    titles = ["the paper's row", "ours", *(f"{BESIDE_THE_PAPER[name]}, {column}" for name, column in asked)]
    titles[-1] = BESIDE_THE_PAPER[LOCAL]
    lines = [
        [row.printed, row.title, *(printed(row.published(_name(name), column)) for name, column in asked)]
        for row in OTHER
    ]
    words = (
        "What the paper prints for the data that † stand in for: other data, so not to be compared with the rows "
        "above. CIFAR-100 (6), FedSoft-Async, after: more than its own clusters have, perhaps a misprint of .292.\n"
    )
    return [words, table(titles, lines)]


def _without(results: Results) -> list[str]:
    """A table of the rows that have a setting of their own, with and without it, seed by seed."""
    pairs = [(name, changes) for name in ("cdfl", "fedasync") for changes in ({}, WITHOUT)]
    lines = []
    for row, seed in product(NOISY_ROWS, range(TRIALS)):
        kept = [results.find(Cell(row.scenario, "default", name, seed, changes)) for name, changes in pairs]
        if any(kept):
            lines.append([row.title, str(seed), *(spread([one.end["after"]] if one else []) for one in kept)])
    titles = [_with(name, changes or NOISY) for name, changes in pairs]
    words = (
        "After the reply, with `default`: MiniImageNet's own setting, as above, and that of FashionMNIST and CIFAR-10; "
        "FedAsync looks at the rate alone. -: not run.\n"
    )
    return [words, table(["row", "seed", *titles], lines)] if lines else []


def _with(algorithm: str, settings: Mapping[str, Any]) -> str:
    """An algorithm, and those of the settings that it looks at: FedAsync has nothing to estimate and its own steps."""
    parts = settings.values() if algorithm == "cdfl" else [settings["base_rate"]]
    return f"{OURS[algorithm]} ({', '.join(str(part).lstrip('0') for part in parts)})"


def _rivals(results: Results) -> list[str]:
    """A table of the rows in which CDFL's replies are above those of each rival."""
    lines = []
    for preset, rival in RIVALS:
        groups = grouped({row.title: _against(results, row, "after", preset, rival) for row in ROWS})
        if groups:
            title = f"{COLUMNS_OF[preset][rival]}, `{preset}`"
            lines.append([title, *(named(groups.get(kind, [])) for kind in OUTCOMES)])
    return [table(["CDFL after the reply, against", *OUTCOMES], lines)] if lines else []


def verdict(results: Results) -> str:
    """How many figures are as near as we asked for and how many orders hold, and which are not and do not."""
    figures = [(row, column) for row in SAME for column in COLUMNS]
    asked = {"figures of CDFL with `paper-reading` within two of the paper's deviations": (_near(results), "within")}
    for rival in ("fedsoft", LOCAL):
        orders = {
            f"{row.title} {column}": _against(results, row, column, "paper-reading", rival)
            for row, column in figures
            if _paper_has_it_above(row, column, rival)
        }
        above = f"figures with `paper-reading` in which CDFL is above {BESIDE_THE_PAPER[rival]}"
        asked[f"{above}, of those where the paper says so"] = (orders, "above")
    better = {
        f"{row.title} {column}": "above" if fmean(values) > published.mean else "not above"
        for row, column in figures
        if (values := results.values(column, row.scenario, "default")) and (published := _figure(row, "cdfl", column))
    }
    asked["figures of CDFL with `default` above the paper's"] = (better, "above")
    lines = [f"- {what}: {held(*outcomes)}" for what, outcomes in asked.items() if any(outcomes[0].values())]
    for rows, where in ((SAME, "of the paper's data"), (OTHER, "of data that stand in for the paper's (†)")):
        found = {
            title: tally({row.title: _against(results, row, "after", "default", rival) for row in rows})
            for rival, title in OURS.items()
            if rival != "cdfl"
        }
        if any(found.values()):
            told = "; ".join(f"{title}: {count}" for title, count in found.items() if count)
            lines.append(f"- rows {where}, CDFL with `default` after the reply against {told}")
    against = {
        _with(rival, WITHOUT): tally(
            {row.title: _against(results, row, "after", "default", rival, WITHOUT) for row in NOISY_ROWS}
        )
        for rival in ("cdfl", "fedasync")
    }
    if any(against.values()):
        told = "; ".join(f"{title}: {count}" for title, count in against.items() if count)
        where = f"rows with a setting of their own, {_with('cdfl', NOISY)}"
        lines.append(f"- {where} after the reply against {told}")
    if not any(results.find(cell) for cell in cells(TRIALS)):
        return "Table 1 has not been run yet.\n"
    return "\n".join([*lines, *_left_out(results), "", RULE])


def _left_out(results: Results) -> list[str]:
    """What was not run at all, and rows with fewer trials than asked for."""
    missing: list[str] = []
    counts: dict[str, list[int]] = {row.title: [] for row in EVERY_ROW}
    for preset, titles in COLUMNS_OF.items():
        lacking: dict[str, str | None] = {}
        for row in EVERY_ROW:
            found = {title: len(results.trials(row.scenario, preset, name)) for name, title in titles.items()}
            counts[row.title] += found.values()
            none = [title for title, count in found.items() if count == 0]
            what = f"`{preset}`" if len(none) == len(found) else f"{', '.join(none)} with `{preset}`"
            lacking[row.title] = what if none else None
        missing += [on_rows(lacking)]
    few = {title: span(found) for title, found in counts.items() if any(0 < count < TRIALS for count in found)}
    told = {"not run": "; ".join(filter(None, missing)), f"trials, where they are not {TRIALS}": on_rows(few)}
    return [f"- {what}: {where}" for what, where in told.items() if where]


def _near(results: Results) -> dict[str, str | None]:
    """For each figure of CDFL: whether it is within two of the paper's deviations."""
    found = {}
    for row in SAME:
        for column in COLUMNS:
            away = distance(_values(results, row, column), _figure(row, "cdfl", column))
            if away is not None:
                found[f"{row.title} {column} {away:+.1f}"] = "within" if abs(away) <= 2 else "beyond"
    return found


def _against(
    results: Results, row: Row, column: str, preset: str, rival: str, changes: Mapping[str, Any] | None = None
) -> str | None:
    ours, theirs = results.trials(row.scenario, preset), results.trials(row.scenario, preset, rival, changes)
    return compare(ours, theirs, lambda kept: kept.end[column])


def _paper_has_it_above(row: Row, column: str, rival: str) -> bool:
    ours, theirs = _figure(row, "cdfl", column), _figure(row, rival, column)
    return ours is not None and theirs is not None and ours.mean > theirs.mean


def _values(results: Results, row: Row, column: str, algorithm: str = "cdfl") -> list[float]:
    return results.values(column, row.scenario, "paper-reading", algorithm)


def _figure(row: Row, algorithm: str, column: str) -> Figure | None:
    """The published figure, unless our data are others."""
    return None if row.stand_in else row.published(_name(algorithm), column)


def _name(algorithm: str) -> str:
    """What experiments/published.json calls it."""
    return "local" if algorithm == LOCAL else algorithm


def draw(results: Results, folder: Path) -> list[str]:
    """Our figures beside the paper's where the data are the same, and in all rows how far rivals are from CDFL."""
    return [*_beside_the_paper(results, folder), *_apart_from_cdfl(results, folder)]


def _apart_from_cdfl(results: Results, folder: Path) -> list[str]:
    """How far the replies of rivals are above those of CDFL, seed by seed, in every row and preset."""
    found = {(row, *rival): gaps for row, rival in product(ROWS, RIVALS) if (gaps := _gaps(results, row, *rival))}
    if not found:
        return []
    rows = list(dict.fromkeys(row for row, _, _ in found))
    presets = [preset for preset in COLUMNS_OF if any(preset == own for _, own, _ in found)]
    grid: Any = {"nrows": len(presets), "sharex": True, "squeeze": False}
    with figure(folder, "table1-rivals", PAGE, 0.7 + 1.8 * len(presets), smoke=results.smoke, **grid) as axes:
        for own, preset in zip(axes[:, 0], presets, strict=True):
            rivals = [name for given, name in RIVALS if given == preset]
            own.axhline(0, color=COLORS["cdfl"], lw=0.8, label="CDFL")
            for place, name in enumerate(rivals):
                at = [where + 0.12 * (place - (len(rivals) - 1) / 2) for where in range(len(rows))]
                style = {"ls": "", "color": COLORS[name]} | MARKERS[preset]
                trials = [found.get((row, preset, name), []) for row in rows]
                means(own, at, trials, label=f"{LABELS[name]}, {preset}", **style)
            own.set_ylabel(f"reply - CDFL's ± SD,\n{preset}")
            rows_below(own, rows)
        legend(axes[0][0], ncols=3)
    return ["table1-rivals"]


def _gaps(results: Results, row: Row, preset: str, rival: str) -> list[float]:
    ours, theirs = results.trials(row.scenario, preset), results.trials(row.scenario, preset, rival)
    return differences(theirs, ours, lambda kept: kept.end["after"])


def _beside_the_paper(results: Results, folder: Path) -> list[str]:
    """CDFL's and FedSoft-Async's figures on the paper's own data: the paper's bars, and our means in two presets."""
    if not any(results.trials(row.scenario, "paper-reading") for row in PICTURED):
        return []
    with figure(folder, "table1", PAGE, 2.6, smoke=results.smoke, ncols=3, sharey=True) as axes:
        for place, column in enumerate(COLUMNS):
            for algorithm, aside in (("cdfl", -0.2), ("fedsoft", 0.2)):
                _figures(axes[place], results, column, algorithm, aside)
            axes[place].set_xticks(range(len(PICTURED)), [row.printed.split("(")[1][:-1] for row in PICTURED])
            axes[place].set(title=column)
        axes[0].set_ylabel("accuracy")
        axes[1].set_xlabel("FashionMNIST, number of clusters")
        legend(axes[0], ncols=3)
    return ["table1"]


def _figures(axes, results: Results, column: str, algorithm: str, aside: float) -> None:
    """One accuracy of one algorithm in all rows, to the left or to the right of their middles."""
    axes.use_sticky_edges = False  # else the lowest bar looks cut
    at = [place + aside for place in range(len(PICTURED))]
    for place, row in zip(at, PICTURED, strict=True):
        mean, deviation = row.published(algorithm, column)
        axes.bar(place, 4 * deviation, 0.36, mean - 2 * deviation, color=PALE, label="the paper ± 2 SD")
        axes.plot([place - 0.18, place + 0.18], [mean, mean], color="white", lw=0.8)
    for preset in ("paper-reading", "default"):
        trials = [results.values(column, row.scenario, preset, algorithm) for row in PICTURED]
        style = {"ls": "", "color": COLORS[algorithm]} | MARKERS[preset]
        means(axes, at, trials, label=f"{LABELS[algorithm]}, {preset}", **style)
