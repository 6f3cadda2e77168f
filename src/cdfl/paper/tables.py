"""Numbers as Markdown."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from cdfl.paper.figures import LABELS
from cdfl.paper.results import Kept
from cdfl.paper.rows import Figure

NOTHING = "-"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers.

    >>> print(table(["row", "after"], [["a", ".5"]]))
    | row | after |
    |---|---:|
    | a | .5 |
    <BLANKLINE>
    """
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(rule) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def spread(values: Sequence[float]) -> str:
    """A mean and its deviation over trials, as the paper prints them.

    >>> spread([0.8, 0.81]), spread([0.8]), spread([])
    ('.805 ± .007', '.800', '-')
    """
    if not values:
        return NOTHING
    return number(fmean(values)) + (f" ± {number(stdev(values))}" if len(values) > 1 else "")


def counted(count: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "trial"), counted(5, "trial")
    ('1 trial', '5 trials')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def number(value: float) -> str:
    """Three digits after the point, none of them before it where it is zero.

    >>> number(0.8234), number(1.5), number(-0.02)
    ('.823', '1.500', '-.020')
    """
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def printed(figure: Figure | None) -> str:
    """A published figure."""
    return NOTHING if figure is None else f"{number(figure.mean)} ± {number(figure.deviation)}"


def distance(values: Sequence[float], figure: Figure | None) -> float | None:
    """How far our mean is from a published one, in its standard deviations."""
    return None if figure is None or not values else (fmean(values) - figure.mean) / figure.deviation


def difference(values: Sequence[float], figure: Figure | None) -> str:
    """How far our mean is from a published one: in accuracy, and in its standard deviations.

    >>> difference([0.82], Figure(0.8, 0.01)), difference([0.82], None)
    ('+.020 (+2.0)', '-')
    """
    away = distance(values, figure)
    if away is None or figure is None:
        return NOTHING
    gap = fmean(values) - figure.mean
    return f"{'+' if gap >= 0 else ''}{number(gap)} ({away:+.1f})"


def signed(value: float | None) -> str:
    """A distance with its sign.

    >>> signed(1.25), signed(-3.0), signed(None)
    ('+1.2', '-3.0', '-')
    """
    return NOTHING if value is None else f"{value:+.1f}"


def span(counts: Iterable[int]) -> str:
    """How many trials there are of what was run at all.

    >>> span([5, 5, 0]), span([5, 1]), span([0])
    ('5', '1-5', '-')
    """
    found = sorted({count for count in counts if count})
    return "-".join(dict.fromkeys(map(str, (found[0], found[-1])))) if found else NOTHING


def provenance(kept: Iterable[Kept]) -> str:
    """A line about the machines, versions, commits and seconds behind some cells."""
    cells = list({one.cell.key: one for one in kept}.values())
    if not cells:
        return "Nothing of it has been run yet.\n"
    runs = [one.record for one in cells]
    machines = sorted({_machine(run) for run in runs})
    commits = sorted({str(run["commit"]) for run in runs})
    told = f"{counted(len(cells), 'run')} in {_seconds(runs)}; {'; '.join(machines)}; commit {', '.join(commits)}."
    return f"{told}{_precisions(cells)}\n"


def earlier(kept: Iterable[Kept]) -> str:
    """A line about cells whose settings have changed since they were run, if there are any."""
    changes: dict[str, None] = {}
    cells: dict[tuple[str, str], set[str]] = {}
    for one in kept:
        for name, then, now in one.changes_since():
            changes[f"{name} {then}, now {now}"] = None
            cells.setdefault((one.cell.preset, one.cell.scenario), set()).add(LABELS[one.cell.algorithm])
    rows: dict[str, list[str]] = {}
    for (preset, scenario), names in sorted(cells.items()):
        rows.setdefault(f"`{preset}`, {', '.join(sorted(names))}", []).append(scenario)
    listed = "; ".join(f"{what} ({', '.join(where)})" for what, where in rows.items())
    return f"Run with earlier settings ({'; '.join(changes)}), to be run again: {listed}.\n" if listed else ""


def _precisions(cells: Sequence[Kept]) -> str:
    """Which cells were computed less or more precisely than most, if any were."""
    (usual, _), *others = Counter(one.record["precision"] for one in cells).most_common()
    every = Counter(_row(one) for one in cells)
    text = ""
    for precision, _ in others:
        own: dict[str, list[str]] = {}
        for one in cells:
            if one.record["precision"] == precision:
                own.setdefault(_row(one), []).append(one.cell.algorithm)
        text += f" In {precision}, not {usual}: {', '.join(_part(row, runs, every[row]) for row, runs in own.items())}."
    return text


def _part(row: str, algorithms: Sequence[str], every: int) -> str:
    """A row, and the algorithms of those of its runs that are meant where these are not all."""
    if len(algorithms) == every:
        return row
    return f"{row} ({', '.join(dict.fromkeys(algorithms))}: {len(algorithms)} of {every} runs)"


def _row(kept: Kept) -> str:
    return f"{kept.cell.scenario} with `{kept.cell.preset}`"


def _seconds(runs: Sequence[Mapping[str, Any]]) -> str:
    """Of the machines: cells of a group are run at once, and groups side by side share a machine."""
    shares = [(run["seconds"] / run["together"], run["processes"]) for run in runs]
    taken = sum(seconds / processes for seconds, processes in shares)
    most = max(processes for _, processes in shares)
    if most == 1:
        return f"{taken:,.0f} s"
    added_up = sum(seconds for seconds, _ in shares)
    return f"about {taken:,.0f} s of the machine, up to {most} groups side by side ({added_up:,.0f} s added up)"


def _machine(run: Mapping[str, Any]) -> str:
    on = run["machine"]
    chip = on["gpu"] if run["device"].startswith("cuda") else f"{on['cores']} cores of {on['cpu']}"
    return f"{chip} ({run['precision']}), torch {on['torch']}, {on['date']}"
