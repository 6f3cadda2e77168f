"""The learning problem of a run: everything random in it is named by seed, client and turn."""

import pytest
import torch

from cdfl.core import flatten
from cdfl.sim.time_models import Uniform

from .world import SETTINGS, make_task, run_fast


def test_everything_follows_from_the_seed():
    first, again, other = make_task(seed=0), make_task(seed=0), make_task(seed=1)
    draw = first.federation.draw(0, 0)
    for part in (
        lambda task: flatten(task.model).tolist(),
        lambda task: task.pretrain().tolist(),
        lambda task: task.plan(draw, 3, 2).tolist(),
        lambda task: list(task.ticks(Uniform()))[:50],
        lambda task: task.noise_seed(3, 2),
        lambda task: task.pretraining_noise_seed,
        lambda task: task.observe(flatten(task.model), draw, 3, 2).chance,
    ):
        assert part(first) == part(again)
        assert part(first) != part(other)


def test_clients_and_looks_have_random_numbers_of_their_own():
    task = make_task()
    draw = task.federation.draw(0, 0)
    keys = [(0, 0), (0, 1), (1, 0), (12, 3), (1, 23)]
    assert len({task.noise_seed(*key) for key in keys}) == 5
    assert len({str(task.plan(draw, *key).tolist()) for key in keys}) == 5
    assert len({task.observe(flatten(task.model), draw, *key).chance for key in keys}) == 5


def test_making_a_task_keeps_the_global_random_state():
    before = torch.get_rng_state()
    task = make_task()
    task.pretrain()
    with task.noise(0, 0):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_pretraining_is_done_together_with_the_same_result():
    for model in ("tiny", "normed", "dropping"):
        task = make_task(SETTINGS.replace(shared_epochs=2), model=model, num_uploads=1)
        expected = task.pretrain()
        run_fast(task)
        assert (task.start - expected).abs().max() < 1e-9


def test_answers_of_one_model_at_a_time():
    task = make_task()
    models = task.pretrain()
    draw = task.federation.draw(0, 0)
    losses = task.sample_losses(models, draw.train)
    assert losses.shape == (len(draw.train), 4)
    assert task.mean_loss(models[2], draw.train) == pytest.approx(float(losses[:, 2].mean()))
    assert task.observe(models[1], draw, 0, 0).loss == pytest.approx(float(losses[:, 1].mean()))
    evaluated = task.evaluate(models[[0, 0]], torch.tensor([0, 3]))
    inputs, targets = task.proxy_sets[3]
    assert float(evaluated[1]) == pytest.approx(
        float(torch.nn.functional.cross_entropy(task.outputs(models[0], inputs), targets))
    )
    right = task.outputs(models[0], task.inputs(draw.test)[0]).argmax(1) == task.inputs(draw.test)[1]
    assert task.accuracy(models[0], draw.test) == pytest.approx(right.double().mean().item())
    assert task.cluster_accuracies(models[:1])[0] == task.cluster_accuracies(models)[0]
    assert len(task.cluster_accuracies(models[:1])) == 4  # one model serves all


def test_clients_that_draw_otherwise_are_not_remembered_as_others() -> None:
    task = make_task()
    drawn = task.turn_data(3, 2)
    assert task.turn_data(3, 2) is drawn
    other = task.with_federation(task.federation.reseeded(task.seed + 1))
    assert drawn.draw.train.index.tolist() != other.turn_data(3, 2).draw.train.index.tolist()
    assert task.turn_data(3, 2) is drawn
