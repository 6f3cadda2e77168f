"""Cells and the settings they stand for."""

import pytest

from cdfl.core import paper, reading
from cdfl.data import PaperDrift, Rotations, Static, Sudden
from cdfl.scenarios import load_scenario
from cdfl.sim.time_models import FewActive, Sessions, Uniform
from experiments.harness import RunKey, resolve


def test_a_run_without_changes_is_its_preset():
    config = resolve(RunKey("fashion-mnist-4", "paper-reading", "fedsoft", 3), "cpu")
    assert config.settings == reading("fashion-mnist-4").replace(max_staleness=80)
    assert (config.algorithm, config.seed, config.time_model) == ("fedsoft", 3, FewActive())
    assert config.scenario == load_scenario("fashion-mnist-4")


@pytest.mark.parametrize(
    ("changes", "find", "expected"),
    [
        ({"proxy": 500}, lambda c: c.scenario.sizes.proxy, 500),
        ({"num_clients": 250}, lambda c: (c.scenario.num_clients, c.settings.rates.max_staleness), (250, 250)),
        ({"num_clients": 250, "max_staleness": 100}, lambda c: c.settings.rates.max_staleness, 100),
        ({"num_uploads": 7}, lambda c: c.scenario.num_uploads, 7),
        ({"drift": "static"}, lambda c: c.scenario.drift, Static()),
        ({"drift": {"kind": "paper", "rest": "uneven"}}, lambda c: c.scenario.drift, PaperDrift(rest="uneven")),
        ({"time_model": "sessions"}, lambda c: c.time_model, Sessions()),
        ({"time_model": {"kind": "few-active", "active": 2}}, lambda c: c.time_model, FewActive(2, 5)),
        ({}, lambda c: c.time_model, Uniform()),
        ({"learning_rate": 1e-3}, lambda c: c.settings, paper("fashion-mnist-4").replace(learning_rate=1e-3)),
    ],
)
def test_changes(changes, find, expected):
    assert find(resolve(RunKey("fashion-mnist-4", "paper", changes=changes), "cpu")) == expected


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (RunKey("fashion-mnist-5", "paper"), "there is no scenario 'fashion-mnist-5'"),
        (RunKey("fashion-mnist-4", "best"), "there is no preset 'best'"),
        (RunKey("fashion-mnist-4", "paper", "avg"), "there is no algorithm 'avg'"),
        (RunKey("fashion-mnist-4", "paper", changes={"speed": 3}), "there is no option or setting 'speed'"),
        (
            RunKey("fashion-mnist-4", "paper", changes={"drift": "sidewards"}),
            "there is no drift 'sidewards'; there are paper",
        ),
        (
            RunKey("fashion-mnist-4", "paper", changes={"time_model": {"kind": "never"}}),
            "there is no time model 'never'; there are uniform",
        ),
    ],
)
def test_what_does_not_exist(key, message):
    with pytest.raises(ValueError, match=message):
        resolve(key, "cpu")


def test_names_tell_runs_apart_whatever_the_order_of_their_changes():
    one = RunKey("a", "paper", changes={"proxy": 500, "base_rate": 0.1})
    assert one.name == RunKey("a", "paper", changes={"base_rate": 0.1, "proxy": 500}).name
    others = [RunKey("b", "paper"), RunKey("a", "default"), RunKey("a", "paper", "ifca"), RunKey("a", "paper", seed=1)]
    assert len({one.name, *(other.name for other in others)}) == 5


def test_a_smoke_run_is_the_same_kind_of_run_and_small():
    config = resolve(RunKey("fashion-mnist-4-sudden", "paper-reading"), "cpu", smoke=True)
    scenario = config.scenario
    assert scenario.clusters == Rotations("digits", 4)
    assert scenario.name == "fashion-mnist-4-sudden (smoke)"  # never taken for the real one
    assert scenario.drift == Sudden(every=2)
    assert (scenario.num_clients, scenario.num_uploads) == (4, 20)
    assert config.time_model == FewActive()
    assert config.settings.rates.base_rate == reading("fashion-mnist-4").rates.base_rate
    many = resolve(RunKey("fashion-mnist-4-ablation", "paper", changes={"num_clients": 1000}), "cpu", smoke=True)
    assert many.scenario.num_clients == 12
