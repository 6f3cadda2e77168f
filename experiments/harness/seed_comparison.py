"""Compare one algorithm with another, seed by seed, and count the outcomes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

from scipy.stats import t as student

from experiments.harness.results_folder import StoredRun

OUTCOMES = ("above", "level", "below", "higher in one trial", "lower in one trial")
RULE = (
    "*Above*, *below*: the 95% confidence interval of the mean difference over seeds (Student's t) excludes zero; "
    "*level*: it includes zero. Single trials count separately.\n"
)


def compare(
    ours: Iterable[StoredRun], theirs: Iterable[StoredRun], value: Callable[[StoredRun], float | None]
) -> str | None:
    """Return the outcome for a value of runs with the same seeds; None without such runs."""
    return outcome(differences(ours, theirs, value))


def differences(
    ours: Iterable[StoredRun], theirs: Iterable[StoredRun], value: Callable[[StoredRun], float | None]
) -> list[float]:
    """Return how much larger a value is in our run than in theirs, for each seed that both have."""
    other = {kept.key.seed: value(kept) for kept in theirs}
    pairs = [(value(kept), other.get(kept.key.seed)) for kept in ours]
    return [mine - yours for mine, yours in pairs if mine is not None and yours is not None]


def outcome(differences: Sequence[float]) -> str | None:
    """Return one of `OUTCOMES`; None without differences.

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
    """Return half of the 95% confidence interval of the mean."""
    trials = len(differences)
    return float(student.ppf(0.975, trials - 1)) * stdev(differences) / sqrt(trials)


def grouped(outcomes: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Return the names of each outcome, in the order of `OUTCOMES`; other outcomes come last.

    >>> grouped({"(2)": "level", "(3)": "above", "(4)": "level", "(6)": None})
    {'above': ['(3)'], 'level': ['(2)', '(4)']}
    """
    found = dict.fromkeys([*OUTCOMES, *filter(None, outcomes.values())])
    groups = {kind: [name for name, own in outcomes.items() if own == kind] for kind in found}
    return {kind: names for kind, names in groups.items() if names}


def count(outcomes: Mapping[str, str | None], wanted: str) -> tuple[int, int]:
    """Return how many outcomes are the wanted one, and how many there are.

    >>> count({"(2)": "level", "(3)": "above", "(4)": None}, "above")
    (1, 2)
    """
    found = [kind for kind in outcomes.values() if kind is not None]
    return found.count(wanted), len(found)


def named(names: Iterable[str]) -> str:
    """Return a list of names that names each dataset once.

    >>> named(["FashionMNIST (2) after", "FashionMNIST (3) after", "digits †"])
    'FashionMNIST (2) after, (3) after, digits †'
    """
    parts, last = [], None
    for name in names:
        dataset, bracket, rest = name.partition(" (")
        parts.append(bracket.strip() + rest if bracket and dataset == last else name)
        last = dataset
    return ", ".join(parts)
