"""Accuracy over time: when replies overtake, and where clusters go."""

from experiments import over_time
from experiments.harness import RunKey
from tests.experiments.small import empty, keep, table


def test_the_row_by_hand(tmp_path):
    results = empty(tmp_path)
    key = RunKey("fashion-mnist-4", "paper-reading")
    keep(results, key)
    kept = results.find(key)
    kept.summary["clusters"] |= {"epoch": [0, 4, 8, 12], "accuracy": [0.8, 0.7, 0.75, 0.82]}
    kept.summary["sessions"] |= {"before": [0.5] * 6, "after": [0.4, 0.6, 0.5, 0.6, 0.6, 0.7]}
    (_, line) = table(over_time.report(results))
    expected = ["FashionMNIST (4)", "CDFL", "1", "6", "4", ".200", ".800", ".700", ".750", ".820"]
    assert line == expected


def test_replies_that_end_behind_never_overtake(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-4", "paper-reading"), before=0.9, after=0.8)
    assert over_time.overtakes(results.trials("fashion-mnist-4", "paper-reading")) is None
