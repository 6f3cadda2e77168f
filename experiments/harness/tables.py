"""Numbers as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from experiments.harness.figure_style import LABELS
from experiments.harness.results_folder import StoredRun
from experiments.harness.seed_comparison import grouped, named
from experiments.harness.table1_rows import Figure, Row

NOTHING = "-"
NOT_RUN = "Not run yet.\n"
STAND_INS = {  # by how the names of scenarios begin: data, replacement, clients in a cluster
    "cifar-10-": ["CIFAR-100", "CIFAR-10 (10 classes)", "5 instead of 20"],
    "mini-imagenet-32px": ["MiniImageNet", "25,000 of 60,000 images, 32x32 instead of 84x84 pixels", "5 instead of 20"],
    "digit-recognition": ["DigitRecognition", "SVHN cropped again; 3,421 of 100,000 plate digits", "as in the paper"],
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers.

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
    """Return a mean and its deviation over trials, as the paper prints them.

    >>> spread([0.8, 0.81]), spread([0.8]), spread([])
    ('.805 ± .007', '.800', '-')
    """
    if not values:
        return NOTHING
    return number(fmean(values)) + (f" ± {number(stdev(values))}" if len(values) > 1 else "")


def counted(count: int, what: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "trial"), counted(5, "trial")
    ('1 trial', '5 trials')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def number(value: float) -> str:
    """Return three decimals, without a leading zero.

    >>> number(0.8234), number(1.5), number(-0.02)
    ('.823', '1.500', '-.020')
    """
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def printed(figure: Figure | None) -> str:
    """Return a published figure."""
    return NOTHING if figure is None else f"{number(figure.mean)} ± {number(figure.deviation)}"


def distance(values: Sequence[float], figure: Figure | None) -> float | None:
    """Return how far our mean is from a published one, in its standard deviations."""
    return None if figure is None or not values else (fmean(values) - figure.mean) / figure.deviation


def difference(values: Sequence[float], figure: Figure | None) -> str:
    """Return how far our mean is from a published one: in accuracy, and in its standard deviations.

    >>> difference([0.82], Figure(0.8, 0.01)), difference([0.82], None)
    ('+.020 (+2.0)', '-')
    """
    away = distance(values, figure)
    if away is None or figure is None:
        return NOTHING
    gap = fmean(values) - figure.mean
    return f"{'+' if gap >= 0 else ''}{number(gap)} ({away:+.1f})"


def signed(value: float | None) -> str:
    """Return a distance with its sign.

    >>> signed(1.25), signed(-3.0), signed(None)
    ('+1.2', '-3.0', '-')
    """
    return NOTHING if value is None else f"{value:+.1f}"


def span(counts: Iterable[int]) -> str:
    """Return the least and the largest number of trials, zeros left out.

    >>> span([5, 5, 0]), span([5, 1]), span([0])
    ('5', '1-5', '-')
    """
    found = sorted({count for count in counts if count})
    return "-".join(dict.fromkeys(map(str, (found[0], found[-1])))) if found else NOTHING


def counts_table(header: str, wanted: str, questions: Mapping[str, Mapping[str, str | None]]) -> str:
    """Return how often each question has the wanted outcome, and the names of the others.

    >>> print(counts_table("claim", "above", {"higher": {"digits (2)": "level", "digits (3)": "above"}}))
    | claim | above | of | others |
    |---|---:|---:|---:|
    | higher | 1 | 2 | level: digits (2) |
    <BLANKLINE>
    """
    lines = []
    for question, outcomes in questions.items():
        groups = grouped(outcomes)
        total = sum(map(len, groups.values()))
        hits = len(groups.pop(wanted, []))
        others = "; ".join(f"{kind}: {named(names)}" for kind, names in groups.items())
        if total:
            lines.append([question, str(hits), str(total), others])
    return table([header, wanted, "of", "others"], lines)


def stand_ins(rows: Iterable[Row]) -> list[str]:
    """Return a table of the stand-ins (†) among these rows, if there are any."""
    there = [row.scenario for row in rows if row.stand_in]
    lines = [note for start, note in STAND_INS.items() if any(name.startswith(start) for name in there)]
    return [table(["the paper's data", "† stand-in", "clients in a cluster"], lines)] if lines else []


def provenance(kept: Iterable[StoredRun]) -> str:
    """Return a table of the machines, versions, commits and seconds of some runs."""
    keys = list({one.key.name: one for one in kept}.values())
    if not keys:
        return NOT_RUN
    groups: dict[tuple[str, str, str], list[StoredRun]] = {}
    for one in keys:
        groups.setdefault(_machine(one.record), []).append(one)
    lines = []
    for (chip, precision, torch), own in sorted(groups.items()):
        runs = [one.record for one in own]
        commits, days = ({str(value) for value in values} for values in (
            [run["commit"] for run in runs], [run["machine"]["date"] for run in runs],
        ))  # fmt: skip
        scenarios = ", ".join(dict.fromkeys(one.key.scenario for one in own))
        seconds = sum(run["seconds"] / run["together"] / run["processes"] for run in runs)
        facts = [str(len(own)), precision, torch, ", ".join(sorted(days)), ", ".join(sorted(commits))]
        lines.append([chip, *facts, f"{seconds:,.0f}", scenarios])
    return table(["machine", "runs", "precision", "torch", "days", "commits", "seconds", "scenarios"], lines)


def _machine(run: Mapping[str, Any]) -> tuple[str, str, str]:
    on = run["machine"]
    chip = on["gpu"] if run["device"].startswith("cuda") else f"{on['cores']} cores of {on['cpu']}"
    return chip, run["precision"], on["torch"]


def earlier(kept: Iterable[StoredRun]) -> list[str]:
    """Return a table of the runs whose settings have changed since they were run, if there are any."""
    lines: dict[tuple[str, ...], None] = {}
    for one in kept:
        for name, then, now in one.changes_since():
            lines[one.key.scenario, one.key.preset, LABELS[one.key.algorithm], name, str(then), str(now)] = None
    header = ["run with earlier settings", "preset", "algorithm", "setting", "then", "now"]
    return [table(header, lines)] if lines else []
