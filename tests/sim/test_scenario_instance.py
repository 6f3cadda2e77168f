"""An instance of a scenario: everything random in it is named by seed, client and turn."""

import pytest
import torch

from cdfl.core import flatten
from cdfl.sim.time_models import Uniform

from .world import SETTINGS, make_instance, run_fast


def test_everything_follows_from_the_seed():
    first, again, other = make_instance(seed=0), make_instance(seed=0), make_instance(seed=1)
    draw = first.federation.draw(0, 0)
    for part in (
        lambda instance: flatten(instance.model).tolist(),
        lambda instance: instance.pretrain().tolist(),
        lambda instance: instance.plan(draw, 3, 2).tolist(),
        lambda instance: list(instance.ticks(Uniform()))[:50],
        lambda instance: instance.noise_seed(3, 2),
        lambda instance: instance.pretraining_noise_seed,
        lambda instance: instance.observe(flatten(instance.model), draw, 3, 2).chance,
    ):
        assert part(first) == part(again)
        assert part(first) != part(other)


def test_clients_and_turns_have_random_numbers_of_their_own():
    instance = make_instance()
    draw = instance.federation.draw(0, 0)
    keys = [(0, 0), (0, 1), (1, 0), (12, 3), (1, 23)]
    assert len({instance.noise_seed(*key) for key in keys}) == 5
    assert len({str(instance.plan(draw, *key).tolist()) for key in keys}) == 5
    assert len({instance.observe(flatten(instance.model), draw, *key).chance for key in keys}) == 5


def test_making_an_instance_keeps_the_global_random_state():
    before = torch.get_rng_state()
    instance = make_instance()
    instance.pretrain()
    with instance.noise(0, 0):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_pretraining_is_done_together_with_the_same_result():
    for model in ("tiny", "normed", "dropping"):
        instance = make_instance(SETTINGS.replace(shared_epochs=2), model=model, num_uploads=1)
        expected = instance.pretrain()
        run_fast(instance)
        assert (instance.start - expected).abs().max() < 1e-9


def test_answers_of_one_model_at_a_time():
    instance = make_instance()
    models = instance.pretrain()
    draw = instance.federation.draw(0, 0)
    losses = instance.sample_losses(models, draw.train)
    assert losses.shape == (len(draw.train), 4)
    assert instance.mean_loss(models[2], draw.train) == pytest.approx(float(losses[:, 2].mean()))
    assert instance.observe(models[1], draw, 0, 0).loss == pytest.approx(float(losses[:, 1].mean()))
    evaluated = instance.evaluate(models[[0, 0]], torch.tensor([0, 3]))
    inputs, targets = instance.proxy_sets[3]
    assert float(evaluated[1]) == pytest.approx(
        float(torch.nn.functional.cross_entropy(instance.outputs(models[0], inputs), targets))
    )
    right = instance.outputs(models[0], instance.inputs(draw.test)[0]).argmax(1) == instance.inputs(draw.test)[1]
    assert instance.scores(models[0], draw.test) == [pytest.approx(right.double().mean().item())]
    (one,), (each,) = instance.cluster_scores(models[:1]), instance.cluster_scores(models)
    assert one[0] == each[0]
    assert len(one) == len(each) == 4  # one model serves all


def test_clients_that_draw_otherwise_are_not_remembered_as_others() -> None:
    instance = make_instance()
    drawn = instance.turn_data(3, 2)
    assert instance.turn_data(3, 2) is drawn
    other = instance.with_federation(instance.federation.reseeded(instance.seed + 1))
    assert drawn.draw.train.index.tolist() != other.turn_data(3, 2).draw.train.index.tolist()
    assert instance.turn_data(3, 2) is drawn
