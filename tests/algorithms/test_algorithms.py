"""Every algorithm on numbers small enough to follow by hand: models of one number each."""

import pytest
import torch

from cdfl.algorithms import (
    ALGORITHMS,
    CDFL,
    IFCA,
    Assignment,
    ClientView,
    FedAsync,
    FedBuff,
    FedSoft,
    Local,
    LocalRestart,
    Oracle,
    make_algorithm,
)
from cdfl.core import Settings, Upload, server_update

MODELS = torch.tensor([[0.0], [10.0]], dtype=torch.float64)
HALF = Settings(  # and the paper's rules
    base_rate=0.5, rate_floor="mean", cluster_step="towards", staleness_hinge="paper"
)


def forbidden(models, clusters):
    raise AssertionError("the proxy sets were looked at")


def view(samples, true_mixture=(0.5, 0.5)):
    """Samples on a line; a model's loss is its distance to them."""
    points = torch.tensor(samples, dtype=torch.float64)
    return ClientView(
        losses=lambda models: (points[:, None] - models[None, :, 0]).abs(),
        true_mixture=torch.tensor(true_mixture, dtype=torch.float64),
    )


def number(value):
    return torch.tensor([value], dtype=torch.float64)


def step(algorithm, state, local_model, samples=(1.0,), reply=None, **upload):
    reply = reply or algorithm.join(state)
    assignment = algorithm.assign(state, reply, view(samples))
    given = {"base_epoch": assignment.base_epoch, "mixture": assignment.mixture, **upload}
    return algorithm.server_update(state, Upload(number(local_model), **given), assignment, forbidden)


def test_names():
    assert list(ALGORITHMS) == ["cdfl", "fedsoft", "fedasync", "fedbuff", "ifca", "local", "local-restart", "oracle"]
    assert all(make_algorithm(name, HALF).name == name for name in ALGORITHMS)
    with pytest.raises(ValueError, match="there is no algorithm 'avg'; there are cdfl, fedsoft, fedasync"):
        make_algorithm("avg", HALF)


def test_cdfl_is_the_core():
    def evaluate(models, clusters):
        return (models[:, 0] - MODELS[clusters, 0]).abs() + 1

    algorithm = CDFL(HALF)
    state = algorithm.initial(MODELS, evaluate, 1)
    upload = Upload(number(3.0), 0)
    assignment = algorithm.assign(state, algorithm.join(state), view([1.0]))
    assert assignment.personal_model.tolist() == [5.0]
    assert assignment.mixture is None
    after, reply = algorithm.server_update(state, upload, assignment, evaluate)
    expected, answer = server_update(state, upload, HALF, evaluate, assignment.last_mixture)
    assert torch.equal(after.cluster_models, expected.cluster_models)
    assert torch.equal(reply.personal_model, answer.personal_model)


def test_fedasync_moves_the_one_model():
    algorithm = FedAsync(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assert algorithm.cluster_models(state).tolist() == [[5.0]]
    state, reply = step(algorithm, state, 9.0)
    assert algorithm.cluster_models(state).tolist() == [[7.0]]  # half the way from 5 to 9
    assert reply.personal_model.tolist() == [7.0]
    assert reply.rates.tolist() == [0.5]


def test_fedasync_fades_with_staleness():
    algorithm = FedAsync(HALF.replace(staleness_slope=1.0, staleness_grace=2.0))
    state = algorithm.initial(MODELS, forbidden, 1)
    for _ in range(2):
        state, _ = step(algorithm, state, float(state.cluster_models))
    state, reply = step(algorithm, state, 9.0, base_epoch=0)  # three epochs old: 1/(3 + 1) of a half
    assert reply.rates.tolist() == [0.125]
    assert algorithm.cluster_models(state).tolist() == [[5.5]]


def test_fedbuff_waits_until_its_buffer_is_full():
    algorithm = FedBuff(Settings(base_rate=0.25), buffer_size=2)
    state = algorithm.initial(MODELS, forbidden, 1)
    first = algorithm.join(state)
    state, reply = step(algorithm, state, 9.0, reply=first)  # a change of +4 waits
    assert (reply.personal_model.tolist(), reply.rates.tolist(), state.count) == ([5.0], [0.0], 1)
    state, reply = step(algorithm, state, 3.0, reply=first)  # -2: the mean is +1, the step 2 x .25
    assert (reply.personal_model.tolist(), reply.rates.tolist(), state.count) == ([5.5], [0.5], 0)
    assert (state.epoch, reply.epoch, reply.staleness) == (2, 2, 2)
    state, reply = step(algorithm, state, 7.5, reply=reply)
    assert state.waiting.tolist() == [2.0]  # what was applied is gone
    with pytest.raises(ValueError, match="buffer_size is 0; expected a whole number, 1 or more"):
        FedBuff(HALF, buffer_size=0)


def test_fedbuff_fades_refuses_the_old_and_never_oversteps():
    fading = FedBuff(HALF.replace(staleness_slope=1.0, staleness_grace=1.0, max_staleness=2), buffer_size=10)
    state = fading.initial(MODELS, forbidden, 1)
    start = fading.join(state)
    state, _ = step(fading, state, 9.0, reply=start)
    assert state.waiting.tolist() == [2.0]  # +4, one epoch old: 1/(1 + 1)
    state, _ = step(fading, state, 5.0, reply=start)
    after, reply = step(fading, state, 90.0, reply=start)  # three epochs old
    assert (reply.deprecated, reply.epoch, after.count, after.waiting.tolist()) == (True, 3, 2, [2.0])
    whole = FedBuff(HALF, buffer_size=10)
    state = whole.initial(MODELS, forbidden, 1)
    start = whole.join(state)
    for _ in range(10):
        state, reply = step(whole, state, 9.0, reply=start)
    assert reply.personal_model.tolist() == [9.0]  # 10 x .5 would be beyond the uploads: at most 1


def test_fedbuff_takes_no_variance_below_those_that_were_sent():
    algorithm = FedBuff(HALF.replace(staleness_slope=0.0), buffer_size=10)  # its step is 1
    start = torch.tensor([[0.0, 1.0]], dtype=torch.float64)  # a weight and a variance
    state = algorithm.initial(start, forbidden, 1)
    first = algorithm.assign(state, algorithm.join(state), None)
    upload = Upload(torch.tensor([0.5, 0.3], dtype=torch.float64), 0)
    models = []
    for number in range(30):  # all of them trained from the first model
        state, reply = algorithm.server_update(state, upload, first, forbidden)
        if number % 10 == 9:
            models.append(reply.personal_model.tolist())
            assert reply.rates.tolist() == [1.0]  # the step that was taken, not the base rate
    expected = [[0.5, 0.3], [1.0, 0.3], [1.5, 0.3]]  # the weight moves along the changes, the variance to the uploads
    assert models == [pytest.approx(model) for model in expected]


def test_fedsoft_lets_every_sample_vote():
    algorithm = FedSoft(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assignment = algorithm.assign(state, algorithm.join(state), view([1.0, 2.0, 3.0, 9.0]))
    assert assignment.mixture.tolist() == [0.75, 0.25]
    assert assignment.personal_model.tolist() == [5.0]
    state, reply = step(algorithm, state, 4.0, samples=(1.0, 2.0, 3.0, 9.0))
    assert reply.rates.tolist() == [0.5, 0.0]  # only the first is at the mean share
    assert algorithm.cluster_models(state).tolist() == [[2.0], [10.0]]
    assert reply.personal_model.tolist() == [0.75 * 2 + 0.25 * 10]


def test_ifca_belongs_to_one_cluster_and_moves_that():
    algorithm = IFCA(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assignment = algorithm.assign(state, algorithm.join(state), view([4.0, 4.0, 9.0]))  # mean distances 5.67, 4.33
    assert assignment.mixture.tolist() == [0.0, 1.0]
    assert assignment.personal_model.tolist() == [10.0]
    state, reply = step(algorithm, state, 8.0, samples=(9.0,))
    assert algorithm.cluster_models(state).tolist() == [[0.0], [9.0]]
    assert reply.personal_model.tolist() == [9.0]
    assert reply.mixture.tolist() == [0.0, 1.0]


def test_the_oracle_knows_the_mixture():
    algorithm = Oracle(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assignment = algorithm.assign(state, algorithm.join(state), view([1.0], (0.2, 0.8)))
    assert assignment.mixture.tolist() == [0.2, 0.8]
    state, reply = algorithm.server_update(state, Upload(number(6.0), 0, mixture=assignment.mixture), assignment, None)
    assert algorithm.cluster_models(state).tolist() == [[0.0], [8.0]]
    assert reply.personal_model.tolist() == pytest.approx([0.8 * 8])


def test_local_keeps_its_model_and_the_server_learns_nothing():
    algorithm = Local(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assert algorithm.join(state).personal_model.tolist() == [5.0]
    after, reply = step(algorithm, state, 7.0)
    assert reply.personal_model.tolist() == [7.0]
    assert torch.equal(algorithm.cluster_models(after), MODELS)
    assert (after.epoch, reply.epoch, reply.rates.tolist()) == (1, 1, [0.0, 0.0])
    assert algorithm.assign(after, reply, view([1.0])).personal_model.tolist() == [7.0]


def test_local_restart_begins_anew():
    algorithm = LocalRestart(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    after, reply = step(algorithm, state, 7.0)
    assert reply.personal_model.tolist() == [7.0]  # what it serves with until its data change
    assert algorithm.assign(after, reply, view([1.0])).personal_model.tolist() == [5.0]


@pytest.mark.parametrize("name", ["fedasync", "fedsoft", "ifca", "oracle"])
def test_too_old_an_upload_gets_todays_models_in_its_last_mixture(name):
    algorithm = make_algorithm(name, HALF.replace(max_staleness=0))
    state = algorithm.initial(MODELS, forbidden, 1)
    last = torch.ones(1) if name == "fedasync" else torch.tensor([1.0, 0.0])
    assignment = Assignment(number(5.0), 0, last, mixture=last)
    after, reply = algorithm.server_update(state, Upload(number(99.0), 0, mixture=last), assignment, forbidden)
    assert reply.deprecated
    assert reply.personal_model.tolist() == ([5.0] if name == "fedasync" else [0.0])
    assert torch.equal(algorithm.cluster_models(after), algorithm.cluster_models(state))
