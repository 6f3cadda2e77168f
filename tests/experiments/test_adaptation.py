"""Adaptation: what happens at a jump."""

from experiments import adaptation
from experiments.harness import RunKey
from tests.experiments.small import HEADER, empty, keep, table


def test_uploads_to_recover(tmp_path):
    """Jumps every 9 uploads of a client: replies fall to .4 and are back after three uploads."""
    results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-4-sudden", "default"), HEADER)
    kept = results.find(RunKey("fashion-mnist-4-sudden", "default"))
    after = [0.8] * 9 + [0.4, 0.6, 0.8] + [0.8] * 8
    kept.summary["updates"] |= {
        "clients": [4] * 20, "after": after, "before": [0.5] * 20, "held": [0.7] * 9 + [0.2] + [0.7] * 10,
    }  # fmt: skip
    line = next(line for line in adaptation.report(results).splitlines() if line.startswith("| CDFL"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["CDFL", "1", ".800", ".200", ".500", ".400", ".400", "3.0"]


def test_replies_after_the_jump_are_compared_in_both_presets(tmp_path):
    results = empty(tmp_path)
    for preset, theirs in (("default", 0.7), ("paper-reading", 0.5)):
        for seed in (0, 1):
            for algorithm, after in (("cdfl", 0.6), ("fedsoft", theirs)):
                key = RunKey("fashion-mnist-4-sudden", preset, algorithm, seed)
                keep(results, key, rounds=20, before=0.5, held=0.4, after=after)
    assert table(adaptation.report(results), 2)[1:] == [
        ["FashionMNIST (4), `default`", "", "", "FedSoft-Async", "", ""],
        ["FashionMNIST (4), `paper-reading`", "FedSoft-Async", "", "", "", ""],
    ]
