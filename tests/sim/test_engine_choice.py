"""Who trains what: stacks, workers, and networks that cannot be stacked."""

import pytest
import torch
from torch import nn

from cdfl.core import client_update, flatten
from cdfl.data import to_input
from cdfl.sim.client_stack import Stack
from cdfl.sim.cpu_threads import Workers
from cdfl.sim.engine import Training, fetch_all
from cdfl.sim.engine_choice import can_stack, draws_random, make_engines

from .world import NETWORKS, SETTINGS, assert_same, make_instance, run_fast, run_plain

pytestmark = pytest.mark.slow


def trainings_of(instance, count=6, start=None):
    draws = [instance.federation.draw(client, 0) for client in range(count)]
    return [
        Training(
            instance.federation,
            draw.train,
            flatten(instance.model) if start is None else start,
            instance.plan(draw, client, 0),
            instance.noise_seed(client, 0),
        )
        for client, draw in enumerate(draws)
    ]


def alone(instance, training):
    inputs, targets = instance.inputs(training.samples)
    batches = ((inputs[batch], targets[batch]) for batch in training.plan)
    return client_update(instance.model, training.start, batches, instance.loss, instance.settings.training)


def stack_of(instance, width=64):
    return Stack(instance.model, instance.loss, instance.settings.training, instance.dtype, width)


def workers_of(instance, precision="float32"):
    return Workers(instance.model, instance.loss, instance.settings.training, instance.dtype, precision)


@pytest.mark.parametrize("model", ["tiny", "normed", "frozen"])
def test_float32_of_one_training_stays_within_a_stated_bound(model):
    """1e-5 of the distance that the training covers, in a stack and in workers."""
    instance = make_instance(SETTINGS.replace(local_epochs=3), model=model, dtype=torch.float32)
    trainings = trainings_of(instance)
    expected = torch.stack([alone(instance, training) for training in trainings])
    moved = (expected - trainings[0].start).norm(dim=1)
    workers = workers_of(instance)
    for engine in (stack_of(instance), stack_of(instance, 2), workers):
        assert ((engine.train(trainings) - expected).norm(dim=1) / moved).max() < 1e-5


def test_a_frozen_part_keeps_every_bit():
    instance = make_instance(model="frozen")
    trained = instance.layout.views(stack_of(instance).train(trainings_of(instance)))
    start = instance.layout.views(flatten(instance.model))
    assert all(torch.equal(row, start["3.weight"]) for row in trained["3.weight"])
    assert not any(torch.equal(row, start["1.weight"]) for row in trained["1.weight"])


def test_results_come_in_the_order_of_the_trainings_and_inputs_stay():
    instance = make_instance()
    trainings = trainings_of(instance)
    assert len({training.plan.shape for training in trainings}) > 2  # sorted by steps, and apart by batch size
    before = trainings[0].start.clone()
    forwards = stack_of(instance).train(trainings)
    backwards = stack_of(instance).train(trainings[::-1])
    assert (forwards - backwards.flip(0)).abs().max() < 1e-12
    assert torch.equal(trainings[0].start, before)


def test_no_steps_leave_the_model_as_it_is():
    instance = make_instance(SETTINGS.replace(shared_epochs=0, separate_epochs=0))
    trainings = [
        Training(instance.federation, training.samples, training.start, training.plan[:0], 0)
        for training in trainings_of(instance, 3)
    ]
    for engine in (
        stack_of(instance),
        workers_of(instance),
    ):
        assert torch.equal(engine.train(trainings), flatten(instance.model).expand(3, -1))
    assert_same(run_fast(instance), run_plain(instance))


def test_looking_at_inputs_of_different_lengths():
    instance = make_instance(model="normed")
    models = stack_of(instance).train(trainings_of(instance, 3))
    own = [torch.randn(count, 1, 8, 8, dtype=torch.float64) for count in (1, 5, 3)]
    stack, workers = (
        stack_of(instance),
        workers_of(instance),
    )
    stack.together = 6  # two passes
    for engine in (stack, workers):
        for model, inputs, outputs in zip(models, own, engine.outputs(models, own), strict=True):
            assert (outputs - instance.outputs(model, inputs)).abs().max() < 1e-12
        for model, outputs in zip(models, engine.outputs(models, own[1]), strict=True):
            assert (outputs - instance.outputs(model, own[1])).abs().max() < 1e-12


def test_a_diverging_training_does_not_affect_its_stack():
    instance = make_instance(model="normed")
    fine = trainings_of(instance)
    ruined = list(fine)
    ruined[2] = Training(fine[2].federation, fine[2].samples, fine[2].start * 1e200, fine[2].plan, 0)
    for engine in (
        stack_of(instance),
        workers_of(instance),
    ):
        expected, found = engine.train(fine), engine.train(ruined)
        assert not torch.isfinite(found[2]).all()
        others = [0, 1, 3, 4, 5]
        assert torch.equal(found[others], expected[others])


# -- networks that vmap cannot handle


@pytest.mark.parametrize("model", NETWORKS)
def test_what_can_be_stacked_is_tried_out(model):
    instance = make_instance(model=model)
    before, state = flatten(instance.model), torch.get_rng_state()
    assert can_stack(instance) == (model not in ("counting", "dropping", "noisy", "branching"))
    assert draws_random(instance) == (model in ("dropping", "noisy"))
    engine = make_engines(instance, width=3).trainer
    assert isinstance(engine, Stack if can_stack(instance) else Workers)
    assert torch.equal(flatten(instance.model), before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("model", "count"), [("counting", 2), ("dropping", 1), ("dropping", 2), ("noisy", 2), ("branching", 2)]
)
def test_networks_that_cannot_be_stacked_run_all_the_same(model, count):
    instance = make_instance(model=model, num_uploads=25)
    engines = make_engines(instance, width=3)
    for engine in (engines.trainer, engines.pretrainer, engines.evaluator):
        engine.count = count
    state = torch.get_rng_state()
    result = run_fast(instance, engines=engines)
    assert torch.equal(torch.get_rng_state(), state)  # the global random state is unchanged
    assert_same(result, run_plain(instance))


def test_dropout_is_drawn_anew_for_every_client_and_look():
    instance = make_instance(model="dropping")
    first, again = (make_engines(instance).trainer.train(trainings_of(instance, 2)) for _ in range(2))
    assert torch.equal(first, again)
    same_data = trainings_of(instance, 1) * 2
    other = Training(same_data[0].federation, same_data[0].samples, same_data[0].start, same_data[0].plan, 5)
    one, two = make_engines(instance).trainer.train([same_data[0], other])
    assert not torch.equal(one, two)


def test_the_engine_follows_the_size_of_the_network_and_the_precision():
    small, big = make_instance(), make_instance(SETTINGS.replace(batch_size=10**6))
    assert isinstance(make_engines(small).trainer, Stack)
    assert isinstance(make_engines(big).trainer, Workers)
    assert isinstance(make_engines(small, precision="bfloat16").trainer, Workers)
    rough = make_engines(make_instance(dtype=torch.float32), precision="bfloat16").trainer
    instance = make_instance(dtype=torch.float32)
    trainings = trainings_of(instance)
    moved = (rough.train(trainings) - torch.stack([alone(instance, training) for training in trainings])).abs().max()
    assert 0 < moved < 0.05
    with pytest.raises(ValueError, match=r"precision is 'float8'; expected one of float32, "):
        make_engines(small, precision="float8")


def test_pretraining_forgets_the_proximal_term():
    engines = make_engines(make_instance(SETTINGS.replace(proximal_strength=0.7)))
    assert engines.trainer.settings.proximal_strength == 0.7
    assert engines.pretrainer.settings.proximal_strength == 0.0


def test_an_error_in_a_network_comes_out_as_it_is(monkeypatch):
    from cdfl.models import MODELS

    monkeypatch.setitem(MODELS, "wrong", lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(7, classes)))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        run_fast(make_instance(model="wrong"))


def test_fetching_many_draws_at_once_is_fetching_each():
    one, other = make_instance(seed=0).federation, make_instance(seed=1).federation
    wanted = [(one, one.draw(0, 0).train), (other, other.draw(0, 0).train), (one, one.draw(1, 0).test)]
    wanted.append((one, one.draw(2, 0).train))
    for (federation, samples), (inputs, targets) in zip(wanted, fetch_all(wanted, torch.float64), strict=True):
        expected_images, expected_labels = federation.fetch(samples)
        assert torch.equal(inputs, to_input(expected_images, torch.float64))
        assert torch.equal(targets, expected_labels)


def test_bfloat16_trains_to_nearly_the_same_model():
    """Within a tenth of the distance covered: stale weights, kept by autocast, would end elsewhere."""
    instance = make_instance(SETTINGS.replace(local_epochs=5), dtype=torch.float32)
    trainings = trainings_of(instance)
    exact = workers_of(instance).train(trainings)
    rounded = workers_of(instance, "bfloat16").train(trainings)
    moved = (exact - trainings[0].start).norm(dim=1)
    assert ((rounded - exact).norm(dim=1) < 0.1 * moved).all()
    assert not torch.equal(rounded, exact)
