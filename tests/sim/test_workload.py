"""The learning problem of a run: everything random in it is named by seed, client and turn."""

import pytest
import torch

from cdfl.core import flatten
from cdfl.sim.time_models import Uniform

from .world import SETTINGS, make_workload, run_fast


def test_everything_follows_from_the_seed():
    first, again, other = make_workload(seed=0), make_workload(seed=0), make_workload(seed=1)
    draw = first.federation.draw(0, 0)
    for part in (
        lambda workload: flatten(workload.model).tolist(),
        lambda workload: workload.pretrain().tolist(),
        lambda workload: workload.plan(draw, 3, 2).tolist(),
        lambda workload: list(workload.ticks(Uniform()))[:50],
        lambda workload: workload.noise_seed(3, 2),
        lambda workload: workload.pretraining_noise_seed,
        lambda workload: workload.observe(flatten(workload.model), draw, 3, 2).chance,
    ):
        assert part(first) == part(again)
        assert part(first) != part(other)


def test_clients_and_looks_have_random_numbers_of_their_own():
    workload = make_workload()
    draw = workload.federation.draw(0, 0)
    keys = [(0, 0), (0, 1), (1, 0), (12, 3), (1, 23)]
    assert len({workload.noise_seed(*key) for key in keys}) == 5
    assert len({str(workload.plan(draw, *key).tolist()) for key in keys}) == 5
    assert len({workload.observe(flatten(workload.model), draw, *key).chance for key in keys}) == 5


def test_making_a_problem_keeps_the_global_random_state():
    before = torch.get_rng_state()
    workload = make_workload()
    workload.pretrain()
    with workload.noise(0, 0):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_pretraining_is_done_together_with_the_same_result():
    for model in ("tiny", "normed", "dropping"):
        workload = make_workload(SETTINGS.replace(shared_epochs=2), model=model, num_uploads=1)
        expected = workload.pretrain()
        run_fast(workload)
        assert (workload.start - expected).abs().max() < 1e-9


def test_answers_of_one_model_at_a_time():
    workload = make_workload()
    models = workload.pretrain()
    draw = workload.federation.draw(0, 0)
    losses = workload.sample_losses(models, draw.train)
    assert losses.shape == (len(draw.train), 4)
    assert workload.mean_loss(models[2], draw.train) == pytest.approx(float(losses[:, 2].mean()))
    assert workload.observe(models[1], draw, 0, 0).loss == pytest.approx(float(losses[:, 1].mean()))
    evaluated = workload.evaluate(models[[0, 0]], torch.tensor([0, 3]))
    inputs, targets = workload.proxy_sets[3]
    assert float(evaluated[1]) == pytest.approx(
        float(torch.nn.functional.cross_entropy(workload.outputs(models[0], inputs), targets))
    )
    right = workload.outputs(models[0], workload.inputs(draw.test)[0]).argmax(1) == workload.inputs(draw.test)[1]
    assert workload.scores(models[0], draw.test) == [pytest.approx(right.double().mean().item())]
    (one,), (each,) = workload.cluster_scores(models[:1]), workload.cluster_scores(models)
    assert one[0] == each[0]
    assert len(one) == len(each) == 4  # one model serves all


def test_clients_that_draw_otherwise_are_not_remembered_as_others() -> None:
    workload = make_workload()
    drawn = workload.turn_data(3, 2)
    assert workload.turn_data(3, 2) is drawn
    other = workload.with_federation(workload.federation.reseeded(workload.seed + 1))
    assert drawn.draw.train.index.tolist() != other.turn_data(3, 2).draw.train.index.tolist()
    assert workload.turn_data(3, 2) is drawn
