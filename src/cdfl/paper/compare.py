"""One algorithm against another, seed by seed, and what several such comparisons come to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

from cdfl.paper.results import Kept

# Student's t, two-sided at 95%, by the number of trials from two on; more trials than these are judged by the last.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
OUTCOMES = ("above", "level", "below", "higher in one trial", "lower in one trial")
RULE = (
    "*Above* and *below*: seed by seed, the 95% confidence interval of the mean difference (Student's t) does not hold "
    "zero; *level*: it does, as nearly always with two trials. One trial has no interval and is counted apart.\n"
)


def compare(ours: Iterable[Kept], theirs: Iterable[Kept], value: Callable[[Kept], float | None]) -> str | None:
    """The outcome for a value of runs that have the same seeds; None where there are none."""
    return outcome(differences(ours, theirs, value))


def differences(ours: Iterable[Kept], theirs: Iterable[Kept], value: Callable[[Kept], float | None]) -> list[float]:
    """How much larger a value is in our run than in theirs, for each seed that both have."""
    other = {kept.cell.seed: value(kept) for kept in theirs}
    pairs = [(value(kept), other.get(kept.cell.seed)) for kept in ours]
    return [mine - yours for mine, yours in pairs if mine is not None and yours is not None]


def outcome(differences: Sequence[float]) -> str | None:
    """One of `OUTCOMES`; None without differences.

    >>> outcome([0.02, 0.03, 0.04]), outcome([-0.01, 0.02, 0.03]), outcome([-0.01])
    ('above', 'level', 'lower in one trial')
    """
    if not differences:
        return None
    mean = fmean(differences)
    if len(differences) == 1 and mean != 0:
        return "higher in one trial" if mean > 0 else "lower in one trial"
    if len(differences) == 1 or abs(mean) <= _margin(differences):
        return "level"
    return "above" if mean > 0 else "below"


def _margin(differences: Sequence[float]) -> float:
    """Half of the 95% confidence interval of their mean: 12.7 standard errors for two, 2.8 for five."""
    trials = len(differences)
    return T_95[min(trials - 2, len(T_95) - 1)] * stdev(differences) / sqrt(trials)


def grouped(outcomes: Mapping[str, str | None]) -> dict[str, list[str]]:
    """The names of each outcome, in the order of `OUTCOMES`; others come after them.

    >>> grouped({"(2)": "level", "(3)": "above", "(4)": "level", "(6)": None})
    {'above': ['(3)'], 'level': ['(2)', '(4)']}
    """
    found = dict.fromkeys([*OUTCOMES, *filter(None, outcomes.values())])
    groups = {kind: [name for name, own in outcomes.items() if own == kind] for kind in found}
    return {kind: names for kind, names in groups.items() if names}


def named(names: Iterable[str]) -> str:
    """A list of names in which a dataset is not repeated.

    >>> named(["FashionMNIST (2) after", "FashionMNIST (3) after", "digits †"])
    'FashionMNIST (2) after, (3) after, digits †'
    """
    parts, last = [], None
    for name in names:
        dataset, bracket, rest = name.partition(" (")
        parts.append(bracket.strip() + rest if bracket and dataset == last else name)
        last = dataset
    return ", ".join(parts)


def on_rows(outcomes: Mapping[str, str | None]) -> str:
    """Each outcome, and the rows it is found on.

    >>> on_rows({"digits (2)": "1", "digits (3)": "1", "CIFAR-10 (2)": "1-2", "CIFAR-10 (3)": None})
    '1 on digits (2), (3); 1-2 on CIFAR-10 (2)'
    """
    return "; ".join(f"{what} on {named(rows)}" for what, rows in grouped(outcomes).items())


def tally(outcomes: Mapping[str, str | None]) -> str:
    """How many there are of each outcome.

    >>> tally({"(2)": "level", "(3)": "above", "(4)": "level"})
    '1 above, 2 level'
    """
    return ", ".join(f"{len(names)} {kind}" for kind, names in grouped(outcomes).items())


def held(outcomes: Mapping[str, str | None], wanted: str) -> str:
    """How many came out as wanted, and the names of those that did not.

    >>> held({"FashionMNIST (2)": "level", "FashionMNIST (3)": "above", "FashionMNIST (4)": "level"}, "above")
    '1 of 3; level: FashionMNIST (2), (4)'
    """
    groups = grouped(outcomes)
    there = sum(map(len, groups.values()))
    hits = len(groups.pop(wanted, []))
    return "; ".join([f"{hits} of {there}", *(f"{kind}: {named(names)}" for kind, names in groups.items())])
