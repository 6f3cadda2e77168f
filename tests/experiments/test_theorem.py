"""Theorem 1: its problem, its bound and its condition."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cdfl.core import paper
from cdfl.paper import Results
from cdfl.paper.convex import Regression
from cdfl.paper.experiment import load_experiment
from cdfl.paper.folder import experiments_folder
from cdfl.paper.theorem import Constants, Steps, bound, needed_rho, trace_run
from cdfl.scenarios import load_scenario


@pytest.fixture(scope="module")
def problem() -> Regression:
    return Regression(load_scenario("digits-4").federation(seed=0), penalty=0.1)


def test_gradients_are_those_of_the_loss(problem):
    models = torch.randn(3, problem.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for cluster in (0, 3):
        found = problem.gradients(models, problem.clusters[cluster])
        for model, gradient in zip(models, found, strict=True):
            model = model.clone().requires_grad_()
            problem.loss(model, problem.clusters[cluster]).backward()
            assert torch.allclose(gradient, model.grad, atol=1e-12)


def test_the_loss_bends_as_much_as_its_constants_say(problem):
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        pair = torch.randn(2, problem.size, dtype=torch.float64, generator=generator)
        gradients = problem.gradients(pair, problem.clusters[1])
        bend = float((gradients[0] - gradients[1]) @ (pair[0] - pair[1]) / (pair[0] - pair[1]).square().sum())
        assert problem.penalty <= bend <= problem.smoothness(1)


def test_the_optimum_has_no_gradient(problem):
    best = problem.optimum(2)
    assert float(problem.gradients(best[None], problem.clusters[2]).norm()) < 1e-6


def test_the_bound_by_hand():
    steps = Steps(fewest=2, most=3, size=0.5, rho=0.1)
    constants = Constants(steps, v1=4.0, v2=9.0, lengths=(1.0, 2.0), delta=2.0, base_rate=0.25, epsilon=0.5)
    terms = bound(constants, cluster=1, smoothness=2.0, fall=0.3, updates=10)
    reach = (2 * 3 + 5 * 2 + 2) * 2.0  # (2 sum a + (2K+1) a_k + K) delta
    assert terms["start"] == pytest.approx(0.3 / (0.25 * 0.5 * 0.5 * 10 * 2))
    assert terms["steps"] == pytest.approx((1 + 0.3 + 0.45) * 0.5 * 3 * 9 / (0.5 * 2))
    assert terms["gradients"] == pytest.approx(2 * reach / (0.5 * 0.5 * 2))
    assert terms["distances"] == pytest.approx(1.1 * reach**2 / (0.5 * 0.5 * 2))


@given(st.floats(1e-3, 1e3), st.floats(1e-6, 1e6), st.floats(1e-9, 10), st.floats(1e-6, 1))
def test_the_condition_on_rho_is_met_at_no_distance_that_local_steps_reach(rho, v1, epsilon, part):
    """Steps of gamma <= 1 / rho keep ||v - u|| <= sqrt(v1) / rho, whatever the problem."""
    assert needed_rho(part * math.sqrt(v1) / rho, v1, epsilon) > rho
    assert needed_rho(0.0, v1, epsilon) == math.inf


def test_a_trace_keeps_to_the_assumptions(problem):
    settings = paper("fashion-mnist-4").replace(loss_bar="min", gap_bar="min", distance_bar="min", max_staleness=8)
    steps = Steps(2, 4, 1 / (max(problem.smoothness(k) for k in range(4)) + 0.5), 0.5)
    trace = trace_run(problem, steps, settings, num_clients=8, uploads=30, seed=0)
    assert 0 < sum(trace.updates) <= 30 * problem.num_clusters
    assert max(square for own in trace.gradients for _, square in own) <= trace.v1
    assert min(trace.distances) == 0.0  # every first step is at v = u
    assert max(trace.distances) <= trace.v1**0.5 / steps.rho
    assert 60 <= len(trace.distances) <= 120
    for k, own in enumerate(trace.gradients):
        assert max((number for number, _ in own), default=0) == trace.updates[k]


@pytest.fixture
def experiment(monkeypatch):
    """The experiment, made small; what it is made of is in `names`."""
    found = load_experiment("theorem1")
    names = found.measure.__globals__
    for name, value in {"UPLOADS": 60, "SEEDS": 1, "RHOS": (0.1, 1.0, 10.0)}.items():
        monkeypatch.setitem(names, name, value)
    return SimpleNamespace(measure=found.measure, report=found.report, verdict=found.verdict, names=names)


def test_the_stored_result_is_of_the_settings_of_today():
    found = load_experiment("theorem1")
    names = found.measure.__globals__
    stored = json.loads((experiments_folder() / "results" / "theorem1.json").read_text(encoding="utf-8"))
    assert names["_is_of"](stored, names["settings"](smoke=False)), "run `cdfl paper theorem1` again"
    assert [float(rho) for rho in stored["rho"]] == list(names["RHOS"])
    for one in stored["rho"].values():
        assert re.fullmatch("[0-9a-f]{7,40}", one["commit"])  # no -dirty
        assert {"cpu", "torch", "numpy", "python"} <= one["machine"].keys()


def test_interrupted_it_goes_on_with_the_next_rho(experiment, tmp_path, monkeypatch):
    run, told = experiment.names["trace_run"], []

    def interrupted(problem, steps, *others):
        if steps.rho == 1.0:
            raise KeyboardInterrupt
        return run(problem, steps, *others)

    with monkeypatch.context() as patch:
        patch.setitem(experiment.names, "trace_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            experiment.measure(Results(tmp_path), False, told.append)
    assert told[0] == "3 rho, 0 of them are there"
    assert "Not run yet: rho 1 and 10." in experiment.report(Results(tmp_path))
    first = json.loads((tmp_path / "theorem1.json").read_text())["rho"]
    told.clear()
    experiment.measure(Results(tmp_path), False, told.append)
    assert told[:2] == ["3 rho, 1 of them are there", "  rho 1: 60 uploads with seed 0"]
    second = json.loads((tmp_path / "theorem1.json").read_text())["rho"]
    assert list(second) == ["0.1", "1.0", "10.0"]
    assert second["0.1"] == first["0.1"]
    told.clear()
    experiment.measure(Results(tmp_path), False, told.append)
    assert told == ["3 rho, 3 of them are there"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("PENALTY", 0.7), ("CLIENTS", 7), ("EPSILON", 0.5), ("DATA_SEED", 1), ("SCENARIO", "digits-4-sudden")],
)
def test_a_result_of_other_settings_is_none(experiment, tmp_path, monkeypatch, name, value):
    found, asked = experiment.names["_found"], experiment.names["settings"]
    results = Results(tmp_path)
    results.add_measured("theorem1", asked(smoke=False), rho={"0.1": {}})
    assert found(results, asked(smoke=False)) == {"0.1": {}}
    assert found(results, asked(smoke=True)) == {}
    monkeypatch.setitem(experiment.names, name, value)
    assert found(results, asked(smoke=False)) == {}
    assert experiment.report(results) == "Nothing of it has been run yet.\n"


def test_a_hyperparameter_that_is_another_one_makes_another_result(experiment):
    asked = experiment.names["settings"](smoke=False)
    then = {**asked, "settings": {**asked["settings"], "base_rate": 0.3}}
    assert not experiment.names["_is_of"]({"settings": then}, asked)
    older = {name: value for name, value in asked["settings"].items() if name != "max_harm"}  # had no such thing
    assert experiment.names["_is_of"]({"settings": {**asked, "settings": older}}, asked)


def test_a_smoke_run_is_not_taken_for_the_result(experiment, tmp_path):
    experiment.measure(Results(tmp_path), True, lambda line: None)
    before = (tmp_path / "theorem1.json").read_bytes()
    with pytest.raises(ValueError, match="holds smoke runs"):
        experiment.measure(Results(tmp_path), False, lambda line: None)
    assert (tmp_path / "theorem1.json").read_bytes() == before


def test_what_is_said_of_gradient_and_loss_is_what_was_measured(experiment, tmp_path):
    experiment.measure(Results(tmp_path), False, lambda line: None)
    file = tmp_path / "theorem1.json"
    stored = json.loads(file.read_text())
    for rho, ends, fall in (("0.1", (8.0, 6.0), 0.2), ("1.0", (4.0, 3.0), -0.3), ("10.0", (4.0, 4.0), -0.1)):
        for cluster in stored["rho"][rho]["clusters"]:
            cluster["curve"] = [ends[0]] * 10 + [100.0] * 20 + [ends[1]] * 10
            cluster["falls"] = [fall]
        stored["rho"][rho]["clusters"][0]["falls"] = [0.0]
    file.write_text(json.dumps(stored))
    text = " ".join(experiment.report(Results(tmp_path)).split())
    assert "quarter of updates by -25% with rho 0.1, -25% with rho 1 and +0% with rho 10." in text
    assert (
        "see 4.0000 in the last quarter. Others see, compared with that, +50% with rho 0.1 and -25% with rho 1" in text
    )
    assert "clearly (by 5%) less with rho 1." in text
    assert (
        "falls with rho 0.1 (by 0.150; in 3 of 4 clusters and seeds); it rises with rho 1 (by 0.225; in 3 of 4" in text
    )
    assert "rises over the run with rho 1 and 10." in experiment.verdict(Results(tmp_path))
