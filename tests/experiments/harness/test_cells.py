"""Cells and the settings they stand for."""

import pytest

from cdfl.core import paper, reading
from cdfl.data import PaperDrift, Rotations, Static, Sudden
from cdfl.scenarios import load_scenario
from cdfl.sim.time_models import FewActive, Sessions, Uniform
from experiments.harness import Cell, resolve


def test_a_cell_without_changes_is_its_preset():
    config = resolve(Cell("fashion-mnist-4", "paper-reading", "fedsoft", 3), "cpu")
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
    assert find(resolve(Cell("fashion-mnist-4", "paper", changes=changes), "cpu")) == expected


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (Cell("fashion-mnist-5", "paper"), "there is no scenario 'fashion-mnist-5'"),
        (Cell("fashion-mnist-4", "best"), "there is no preset 'best'"),
        (Cell("fashion-mnist-4", "paper", "avg"), "there is no algorithm 'avg'"),
        (Cell("fashion-mnist-4", "paper", changes={"speed": 3}), "there is no setting 'speed'"),
        (
            Cell("fashion-mnist-4", "paper", changes={"drift": "sidewards"}),
            "there is no drift 'sidewards'; there are paper",
        ),
        (
            Cell("fashion-mnist-4", "paper", changes={"time_model": {"kind": "never"}}),
            "there is no time model 'never'; there are uniform",
        ),
    ],
)
def test_what_does_not_exist(cell, message):
    with pytest.raises(ValueError, match=message):
        resolve(cell, "cpu")


def test_keys_tell_cells_apart_whatever_the_order_of_their_changes():
    one = Cell("a", "paper", changes={"proxy": 500, "base_rate": 0.1})
    assert one.key == Cell("a", "paper", changes={"base_rate": 0.1, "proxy": 500}).key
    others = [Cell("b", "paper"), Cell("a", "default"), Cell("a", "paper", "ifca"), Cell("a", "paper", seed=1)]
    assert len({one.key, *(other.key for other in others)}) == 5


def test_a_smoke_run_is_the_same_kind_of_run_and_small():
    config = resolve(Cell("fashion-mnist-4-sudden", "paper-reading"), "cpu", smoke=True)
    scenario = config.scenario
    assert scenario.clusters == Rotations("digits", 4)
    assert scenario.name == "fashion-mnist-4-sudden (smoke)"  # never taken for the real one
    assert scenario.drift == Sudden(every=2)
    assert (scenario.num_clients, scenario.num_uploads) == (4, 20)
    assert config.time_model == FewActive()
    assert config.settings.rates.base_rate == reading("fashion-mnist-4").rates.base_rate
    many = resolve(Cell("fashion-mnist-4-ablation", "paper", changes={"num_clients": 1000}), "cpu", smoke=True)
    assert many.scenario.num_clients == 12
