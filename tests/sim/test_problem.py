"""The learning problem of a run: everything random in it is named by seed, client and turn."""

import pytest
import torch

from cdfl.core import flatten
from cdfl.sim.time_models import Uniform

from .world import SETTINGS, make_problem, run_fast


def test_everything_follows_from_the_seed():
    first, again, other = make_problem(seed=0), make_problem(seed=0), make_problem(seed=1)
    draw = first.federation.draw(0, 0)
    for part in (
        lambda problem: flatten(problem.model).tolist(),
        lambda problem: problem.pretrain().tolist(),
        lambda problem: problem.plan(draw, 3, 2).tolist(),
        lambda problem: list(problem.ticks(Uniform()))[:50],
        lambda problem: problem.noise_seed(3, 2),
        lambda problem: problem.pretraining_noise_seed,
        lambda problem: problem.observe(flatten(problem.model), draw, 3, 2).chance,
    ):
        assert part(first) == part(again)
        assert part(first) != part(other)


def test_clients_and_looks_have_random_numbers_of_their_own():
    problem = make_problem()
    draw = problem.federation.draw(0, 0)
    keys = [(0, 0), (0, 1), (1, 0), (12, 3), (1, 23)]
    assert len({problem.noise_seed(*key) for key in keys}) == 5
    assert len({str(problem.plan(draw, *key).tolist()) for key in keys}) == 5
    assert len({problem.observe(flatten(problem.model), draw, *key).chance for key in keys}) == 5


def test_making_a_problem_keeps_the_global_random_state():
    before = torch.get_rng_state()
    problem = make_problem()
    problem.pretrain()
    with problem.noise(0, 0):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_pretraining_is_done_together_with_the_same_result():
    for model in ("tiny", "normed", "dropping"):
        problem = make_problem(SETTINGS.replace(shared_epochs=2), model=model, num_uploads=1)
        expected = problem.pretrain()
        run_fast(problem)
        assert (problem.start - expected).abs().max() < 1e-9


def test_answers_of_one_model_at_a_time():
    problem = make_problem()
    models = problem.pretrain()
    draw = problem.federation.draw(0, 0)
    losses = problem.sample_losses(models, draw.train)
    assert losses.shape == (len(draw.train), 4)
    assert problem.mean_loss(models[2], draw.train) == pytest.approx(float(losses[:, 2].mean()))
    assert problem.observe(models[1], draw, 0, 0).loss == pytest.approx(float(losses[:, 1].mean()))
    evaluated = problem.evaluate(models[[0, 0]], torch.tensor([0, 3]))
    inputs, targets = problem.proxy_sets[3]
    assert float(evaluated[1]) == pytest.approx(
        float(torch.nn.functional.cross_entropy(problem.outputs(models[0], inputs), targets))
    )
    right = problem.outputs(models[0], problem.inputs(draw.test)[0]).argmax(1) == problem.inputs(draw.test)[1]
    assert problem.accuracy(models[0], draw.test) == pytest.approx(right.double().mean().item())
    assert problem.cluster_accuracies(models[:1])[0] == problem.cluster_accuracies(models)[0]
    assert len(problem.cluster_accuracies(models[:1])) == 4  # one model serves all


def test_clients_that_draw_otherwise_are_not_remembered_as_others() -> None:
    problem = make_problem()
    drawn = problem.turn_data(3, 2)
    assert problem.turn_data(3, 2) is drawn
    other = problem.with_federation(problem.federation.reseeded(problem.seed + 1))
    assert drawn.draw.train.index.tolist() != other.turn_data(3, 2).draw.train.index.tolist()
    assert problem.turn_data(3, 2) is drawn
