"""Ablations: what a change does, and staleness."""

from itertools import chain

from cdfl.sim.event_builders import staleness_histogram
from experiments import ablations
from experiments.harness import RunKey, resolve
from experiments.harness.results_folder import stored
from experiments.harness.runner import RunOptions, run_missing
from tests.experiments.small import empty, keep, table

NAME = "fashion-mnist-4-ablation"


def test_the_largest_change_is_that_of_the_means(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey(NAME, "paper-reading"), after=0.8)
    keep(results, RunKey(NAME, "paper-reading", changes={"proxy": 500}), after=0.795)
    keep(results, RunKey(NAME, "paper-reading", changes={"num_clients": 1000}), after=0.75)
    assert table(ablations.report(results), 1) == [
        ["largest difference to the other values", "before", "after", "cluster"],
        ["FashionMNIST (4), size of proxy set 500", ".000", ".005", ".000"],
        ["FashionMNIST (4), number of clients 1000", ".000", ".050", ".000"],
    ]
    assert ablations.largest_change(results, "cifar-10-4", "size of proxy set") == {}


def test_a_question_needs_two_values(tmp_path):
    results = empty(tmp_path)
    keep(results, RunKey(NAME, "paper-reading", changes={"proximal_strength": 0.01}))
    assert ablations.found(results, NAME) == {}
    keep(results, RunKey(NAME, "paper-reading"))
    assert list(ablations.found(results, NAME)) == ["rho"]


def test_no_setting_is_run_twice_for_two_questions():
    settings = [(key.scenario, stored(resolve(key, "cpu"))) for key in ablations.run_keys(1)]
    assert [one for place, one in enumerate(settings) if one in settings[:place]] == []


def test_every_question_has_its_panel():
    for scenario in ablations.SCENARIOS:
        assert {line[0] for line in ablations._lines(scenario)} == set(chain(*ablations.PANELS))


def test_staleness_computed_again_is_that_of_the_run(tmp_path):
    keys = [RunKey(NAME, "paper-reading", changes={"time_model": name}) for name in ("sessions", "uniform")]
    results = empty(tmp_path)
    run_missing(keys, results, RunOptions("cpu", smoke=True), lambda line: None)
    for kept in results:
        width = max(1, kept.record["config"]["scenario"]["num_clients"] // 8)
        assert staleness_histogram(ablations.staleness(kept), width) == kept.end["staleness"]
