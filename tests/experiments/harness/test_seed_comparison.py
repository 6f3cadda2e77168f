"""One algorithm against another: noise is not a win."""

import pytest

from experiments.harness import Results, RunKey
from experiments.harness.seed_comparison import compare, outcome
from tests.experiments.small import empty, keep


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([], None),
        ([0.001], "higher in one trial"),
        ([-0.001], "lower in one trial"),
        ([0.0], "level"),
        ([0.0, 0.0], "level"),
        ([0.01, 0.01], "above"),
        ([-0.01, -0.01], "below"),
        ([0.0, 0.02], "level"),  # .01, and a standard error of .01
        ([0.010, 0.012], "level"),  # .011, and 12.706 times .001
        ([0.012, 0.014], "above"),  # .013, and 12.706 times .001
        ([-0.012, -0.014], "below"),
        ([0.0, 0.01, 0.02, 0.03, 0.04], "above"),  # .02, and 2.776 times .00707
        ([-0.002, 0.01, 0.02, 0.03, 0.04], "level"),  # .0196, and 2.776 times .00736
    ],
)
def test_a_difference_counts_beyond_its_confidence_interval(differences, expected):
    assert outcome(differences) == expected


def test_trials_are_compared_with_those_of_the_same_seed(tmp_path):
    results: Results = empty(tmp_path)
    for seed, (ours, theirs) in enumerate(((0.5, 0.49), (0.8, 0.79), (0.6, 0.59))):
        keep(results, RunKey("fashion-mnist-4", "default", seed=seed), after=ours)
        keep(results, RunKey("fashion-mnist-4", "default", "fedbuff", 2 - seed), after=theirs)
        keep(results, RunKey("fashion-mnist-4", "default", "fedsoft", seed), after=theirs)
    keep(results, RunKey("fashion-mnist-4", "default", "fedsoft", 3), after=0.9)  # no partner
    ours, paired, crossed = (results.trials("fashion-mnist-4", "default", n) for n in ("cdfl", "fedsoft", "fedbuff"))
    assert compare(ours, paired, lambda kept: kept.end["after"]) == "above"  # .01 in each, though seeds are .3 apart
    assert compare(ours, crossed, lambda kept: kept.end["after"]) == "level"
    assert compare(ours, paired, lambda kept: None) is None
    assert compare(ours, [], lambda kept: kept.end["after"]) is None
