"""Estimated mixtures: compared with FedSoft-Async's, with equal shares, and with the truth."""

from statistics import fmean

from cdfl.sim.event_builders import divergence
from experiments import estimation
from experiments.harness import EVERY_ROW, Results, RunKey
from experiments.harness.run_summary import main_and_constant
from experiments.harness.table1_rows import FOLDER
from tests.experiments.small import empty, keep, table


def test_stand_ins_are_counted_separately(tmp_path):
    results = empty(tmp_path)
    for seed in (0, 1):
        for scenario, ours in (("fashion-mnist-4", 0.1), ("fashion-mnist-6", 0.3), ("digit-recognition", 0.1)):
            keep(results, RunKey(scenario, "default", seed=seed), divergence=ours)
            keep(results, RunKey(scenario, "default", "fedsoft", seed), divergence=0.2)
    _, *lines = table(estimation.report(results), 2)
    assert lines[:2] == [
        ["CDFL below FedSoft-Async, `default`, the paper's data", "1", "2", "above: FashionMNIST (6)"],
        ["CDFL below FedSoft-Async, `default`, stand-ins (†)", "1", "1", ""],
    ]
    assert not any("paper-reading" in line[0] for line in lines)


def test_estimates_against_equal_shares_and_main_clusters(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-2", "default"), divergence=0.1, true_mixture=[0.7, 0.3], mixture=[0.4, 0.6])
    keep(results, RunKey("fashion-mnist-6", "default"), divergence=0.1, true_mixture=[0.7, 0.3], mixture=[0.6, 0.4])
    text = estimation.report(results)
    assert table(text, 1)[1] == ["CDFL, `default`, below equal shares", "1", "2", "above: FashionMNIST (2)"]
    assert table(text, 2)[1:] == [
        ["FashionMNIST (2)", "-", "0%", "-", "0"],
        ["FashionMNIST (6)", "-", "100%", "-", "0"],
    ]


def test_clusters_with_far_too_small_shares_are_counted(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey("fashion-mnist-2", "default"), true_mixture=[0.5, 0.5], mixture=[0.88, 0.12])
    keep(results, RunKey("fashion-mnist-3", "default"), true_mixture=[0.4, 0.4, 0.2], mixture=[0.8, 0.12, 0.08])
    found = [estimation.mixtures(results, row, "default") for row in EVERY_ROW[:2]]
    assert [estimation.num_forgotten(*own) for own in found] == [1, 0]


def test_the_estimate_of_the_paper_measures_less_than_the_main_cluster_and_a_constant():
    """The sentences of `docs/paper.md`."""
    results = Results(FOLDER / "results")
    for row in EVERY_ROW:
        for preset in estimation.PRESETS:
            true, estimated = estimation.mixtures(results, row, preset)
            kl = fmean(map(divergence, true.tolist(), estimated.tolist()))
            assert kl > main_and_constant(true.tolist())
            assert -0.245 < estimation.main_correlation(true, estimated) < 0.635
