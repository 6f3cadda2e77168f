"""Theorem 1: its problem, its bound and its condition."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cdfl.core import paper
from cdfl.scenarios import load_scenario
from experiments.harness.softmax_problem import SoftmaxProblem
from experiments.harness.theorem import Constants, Measured, Steps, bound, needed_rho, trace_run


@pytest.fixture(scope="module")
def problem() -> SoftmaxProblem:
    return SoftmaxProblem(load_scenario("digits-4").federation(seed=0), penalty=0.1)


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


def test_measurements_are_means_over_clusters():
    clusters = [
        {"updates": 4, "terms": {"start": 1.0, "steps": 3.0}, "curve": [8.0, 6.0, 4.0, 2.0], "falls": [0.2, -0.1]},
        {"updates": 6, "terms": {"start": 2.0, "steps": 4.0}, "curve": [6.0, 6.0, 6.0, 4.0, 9.0], "falls": [0.1, 0.2]},
    ]
    one = Measured(0.1, {"v1": 0.5, "clusters": clusters})
    assert (one.mean("updates"), one.terms, one.bound, one.excess) == (5.0, {"start": 1.5, "steps": 3.5}, 5.0, 10.0)
    assert one.curve.tolist() == [7.0, 6.0, 5.0, 3.0]
    assert one.ends == (7.0, 3.0)
    assert one.fall == pytest.approx(0.1)
