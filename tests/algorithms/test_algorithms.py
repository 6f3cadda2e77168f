"""Every algorithm worked by hand: models are single numbers."""

from dataclasses import dataclass, replace

import pytest
import torch

from cdfl.algorithms import (
    ALGORITHMS,
    CDFL,
    IFCA,
    Algorithm,
    Assignment,
    ClientView,
    FedAsync,
    FedBuff,
    FedSoft,
    Local,
    LocalKeep,
    MixtureFromClient,
    Oracle,
    check_algorithm,
    make_algorithm,
    register,
)
from cdfl.core import ClientMemory, Limited, PrintedEstimator, Reply, Settings, Upload, Verdict, server_update
from cdfl.core.guard import Guard
from cdfl.core.state import ACCEPTED

MODELS = torch.tensor([[0.0], [10.0]], dtype=torch.float64)
HALF = Settings(  # with the paper's rules
    base_rate=0.5, rate_floor="mean", cluster_step="towards", staleness_hinge="paper"
)


def forbidden(models, clusters):
    raise AssertionError("the proxy sets were evaluated")


def view(samples, true_mixture=(0.5, 0.5)):
    """Samples on a line; the loss of a model is its distance to them."""
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
    named = ["cdfl", "fedsoft", "fedem", "ifca", "fedasync", "fedbuff", "local", "local-keep", "frozen", "oracle"]
    assert list(ALGORITHMS) == named
    assert all(make_algorithm(name, HALF).name == name for name in ALGORITHMS)
    with pytest.raises(ValueError, match="there is no algorithm 'avg'; there are cdfl, fedsoft, fedem"):
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
    expected, answer = server_update(state, upload, HALF, evaluate, assignment.client)
    assert torch.equal(after.cluster_models, expected.cluster_models)
    assert torch.equal(reply.personal_model, answer.personal_model)


def test_fedasync_moves_the_one_model():
    algorithm = FedAsync(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assert algorithm.cluster_models(state).tolist() == [[5.0]]
    state, reply = step(algorithm, state, 9.0)
    assert algorithm.cluster_models(state).tolist() == [[7.0]]  # half way from 5 to 9
    assert reply.personal_model.tolist() == [7.0]
    assert reply.rates.tolist() == [0.5]


def test_fedasync_moves_less_with_staleness():
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
    state, reply = step(algorithm, state, 9.0, reply=first)  # a change of +4 is buffered
    assert (reply.personal_model.tolist(), reply.rates.tolist(), state.count) == ([5.0], [0.0], 1)
    state, reply = step(algorithm, state, 3.0, reply=first)  # -2: the mean is +1, the step 2 x .25
    assert (reply.personal_model.tolist(), reply.rates.tolist(), state.count) == ([5.5], [0.5], 0)
    assert (state.epoch, reply.epoch, reply.staleness) == (2, 2, 2)
    state, reply = step(algorithm, state, 7.5, reply=reply)
    assert state.waiting.tolist() == [2.0]  # the applied changes are gone
    with pytest.raises(ValueError, match="buffer_size is 0; expected a whole number, 1 or more"):
        FedBuff(HALF, buffer_size=0)


def test_fedbuff_weighs_by_staleness():
    fading = FedBuff(HALF.replace(max_staleness=5), buffer_size=2)
    state = fading.initial(MODELS, forbidden, 1)
    start = fading.join(state)
    for _ in range(2):
        state, _ = step(fading, state, 5.0, reply=start)  # changes nothing
    state, _ = step(fading, state, 9.0, reply=start)
    assert state.waiting.tolist() == [pytest.approx(4 / 2**0.5)]  # +4, one version of the model old
    state, _ = step(fading, state, 5.0, reply=start)
    state, _ = step(fading, state, 5.0, reply=start)
    after, reply = step(fading, state, 90.0, reply=start)  # six epochs old
    assert (reply.outcome, reply.epoch, after.count, after.waiting.tolist()) == ("deprecated", 6, 1, [0.0])


def test_fedbuff_keeps_variances_between_those_of_the_uploads():
    algorithm = FedBuff(HALF.replace(base_rate=0.2), buffer_size=10)  # its step is 2
    start = torch.tensor([[0.0, 1.0]], dtype=torch.float64)  # a weight and a variance
    state = algorithm.initial(start, forbidden, 1)
    first = algorithm.assign(state, algorithm.join(state), None)
    upload = Upload(torch.tensor([0.5, 0.3], dtype=torch.float64), 0)
    models = []
    for number in range(30):  # all are trained from the first model
        state, reply = algorithm.server_update(state, upload, first, forbidden)
        if number % 10 == 9:
            models.append(reply.personal_model.tolist())
            assert reply.rates.tolist() == [2.0]  # the step that was taken, not the base rate
    # The weight moves along the changes (versions 0, 1, 2 old: 1 / sqrt(1 + versions)), the variance to the uploads.
    weights = [1.0, 1 + 0.5**0.5, 1 + 0.5**0.5 + 3**-0.5]
    expected = [[weight, 0.3] for weight in weights]
    assert models == [pytest.approx(model) for model in expected]


def test_fedsoft_lets_every_sample_vote():
    algorithm = FedSoft(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assignment = algorithm.assign(state, algorithm.join(state), view([1.0, 2.0, 3.0, 9.0]))
    assert assignment.mixture.tolist() == [0.75, 0.25]
    assert assignment.personal_model.tolist() == [2.5]  # from its new votes
    state, reply = step(algorithm, state, 4.0, samples=(1.0, 2.0, 3.0, 9.0))
    assert reply.rates.tolist() == [0.5, 0.0]  # only the first is at the mean share
    assert algorithm.cluster_models(state).tolist() == [[2.0], [10.0]]
    assert reply.personal_model.tolist() == [0.75 * 2 + 0.25 * 10]


def test_ifca_moves_the_best_cluster_only():
    algorithm = IFCA(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assignment = algorithm.assign(state, algorithm.join(state), view([4.0, 4.0, 9.0]))  # mean distances 5.67, 4.33
    assert assignment.mixture.tolist() == [0.0, 1.0]
    assert assignment.personal_model.tolist() == [10.0]
    state, reply = step(algorithm, state, 8.0, samples=(9.0,))
    assert algorithm.cluster_models(state).tolist() == [[0.0], [9.0]]
    assert reply.personal_model.tolist() == [9.0]
    assert reply.mixture.tolist() == [0.0, 1.0]


def test_the_oracle_uses_the_true_mixture():
    algorithm = Oracle(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assignment = algorithm.assign(state, algorithm.join(state), view([1.0], (0.2, 0.8)))
    assert assignment.mixture.tolist() == [0.2, 0.8]
    state, reply = algorithm.server_update(state, Upload(number(6.0), 0, mixture=assignment.mixture), assignment, None)
    assert algorithm.cluster_models(state).tolist() == [[0.0], [8.0]]
    assert reply.personal_model.tolist() == pytest.approx([0.8 * 8])


def test_local_keep_trains_on_from_its_own_model():
    algorithm = LocalKeep(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    assert algorithm.join(state).personal_model.tolist() == [5.0]
    after, reply = step(algorithm, state, 7.0)
    assert reply.personal_model.tolist() == [7.0]
    assert torch.equal(algorithm.cluster_models(after), MODELS)
    assert (after.epoch, reply.epoch, reply.rates.tolist()) == (1, 1, [0.0, 0.0])
    assert algorithm.assign(after, reply, view([1.0])).personal_model.tolist() == [7.0]


def test_local_trains_from_the_common_start_whenever_data_change():
    algorithm = Local(HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    after, reply = step(algorithm, state, 7.0)
    assert reply.personal_model.tolist() == [7.0]  # its model until its data change
    assert algorithm.assign(after, reply, view([1.0])).personal_model.tolist() == [5.0]


@pytest.mark.parametrize("name", ["fedasync", "fedsoft", "ifca", "oracle"])
def test_a_deprecated_upload_is_answered_with_the_last_mixture(name):
    algorithm = make_algorithm(name, HALF.replace(max_staleness=0))
    state = algorithm.initial(MODELS, forbidden, 1)
    last = torch.ones(1) if name == "fedasync" else torch.tensor([1.0, 0.0])
    assignment = Assignment(number(5.0), 0, ClientMemory(last, (2.0,)), mixture=last)
    after, reply = algorithm.server_update(state, Upload(number(99.0), 0, mixture=last), assignment, forbidden)
    assert reply.outcome == "deprecated"
    assert reply.client.defence == (2.0,)
    assert reply.personal_model.tolist() == ([5.0] if name == "fedasync" else [0.0])
    assert torch.equal(algorithm.cluster_models(after), algorithm.cluster_models(state))


# -- estimator and defence of CDFL


def squares(models, clusters):
    return ((models - MODELS[clusters]) ** 2).sum(dim=1) + 1


def test_cdfl_takes_estimator_and_defence_from_its_settings():
    algorithm = CDFL(HALF.replace(guard=True))
    assert algorithm.estimator == PrintedEstimator(HALF.estimate)
    assert algorithm.defence == Guard(HALF.rates.base_rate)


class Uniform:
    """An estimator that gives every cluster the same share."""

    needs_measures = False

    def begin(self, num_clusters):
        return torch.empty(0)

    def __call__(self, upload, measures, memory, epoch):
        return torch.full((2,), 0.5), memory


class RefuseAll:
    """A defence that counts the uploads of a client and accepts none."""

    needs_base = False
    counts_deprecated = False

    def admit(self, state, upload, client):
        return upload, ACCEPTED

    def limit(self, state, upload, rates, client, settings, evaluate):
        count = client.defence[0] + 1 if client.defence else 1.0
        return Limited(rates, state.cluster_losses, Verdict(False, (), (count,), "no"))

    def remember(self, memory, verdict):
        return memory


def test_cdfl_takes_another_estimator_and_another_defence():
    algorithm = CDFL(HALF, Uniform(), RefuseAll())
    state = algorithm.initial(MODELS, squares, 1)
    reply = algorithm.join(state)
    for count in (1.0, 2.0):  # what the server remembers of the client comes back with the next assignment
        assignment = algorithm.assign(state, reply, view([1.0]))
        state, reply = algorithm.server_update(state, Upload(number(3.0), assignment.base_epoch), assignment, forbidden)
        assert (reply.outcome, reply.mixture.tolist(), reply.client.defence) == ("rejected", [0.5, 0.5], (count,))
    assert torch.equal(algorithm.cluster_models(state), MODELS)


@pytest.mark.parametrize("name", ["fedsoft", "fedasync", "ifca", "oracle"])
def test_what_the_server_remembers_of_a_client_goes_into_its_assignment(name):
    algorithm = make_algorithm(name, HALF)
    state = algorithm.initial(MODELS, forbidden, 1)
    reply = algorithm.join(state).replace(verdict=Verdict(client=(7.0,)))
    assignment = algorithm.assign(state, reply, view([1.0]))
    assert assignment.client.defence == (7.0,)
    _, reply = algorithm.server_update(state, Upload(number(3.0), 0, mixture=assignment.mixture), assignment, forbidden)
    assert reply.client.defence == (7.0,)


# -- the interface


def test_rivals_are_algorithms_but_not_cdfl():
    assert all(Algorithm in kind.__mro__ for kind in ALGORITHMS.values())  # a protocol does not support issubclass
    assert [kind for kind in ALGORITHMS.values() if issubclass(kind, CDFL)] == [CDFL]
    assert all(issubclass(kind, MixtureFromClient) for kind in (FedSoft, FedAsync, IFCA, Oracle))


@dataclass(frozen=True, eq=False)
class Kept:
    models: torch.Tensor
    epoch: int = 0


class Duck:
    """An algorithm that derives from nothing: replies are the average, uploads are ignored."""

    name = "duck"
    uses_proxy = False
    estimates = False
    models_down = "one"

    def __init__(self, settings):
        self.settings = settings

    def network(self, model, num_clusters):
        return model

    def initial(self, cluster_models, evaluate, num_parameters):
        return Kept(cluster_models)

    def join(self, state):
        return self.reply(state, state.epoch)

    def assign(self, state, reply, view):
        return Assignment(reply.personal_model, reply.epoch, reply.client)

    def server_update(self, state, upload, assignment, evaluate):
        state = replace(state, epoch=state.epoch + 1)
        staleness = state.epoch - upload.base_epoch
        reply = self.reply(state, upload.base_epoch)
        limit = self.settings.rates.max_staleness
        is_old = limit is not None and staleness > limit
        return state, reply.replace(outcome="deprecated" if is_old else "applied")

    def cluster_models(self, state):
        return state.models

    def reply(self, state, base_epoch):
        shares = torch.full((len(state.models),), 1 / len(state.models), dtype=torch.float64)
        return Reply(state.models.mean(dim=0), state.epoch, shares, 0 * shares, state.epoch - base_epoch)


@pytest.fixture
def registry():
    known = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(known)


@pytest.mark.usefixtures("registry")
def test_any_class_with_the_methods_can_be_registered():
    assert register(Duck) is Duck
    algorithm = make_algorithm("duck", HALF)
    assert isinstance(algorithm, Duck)
    assert isinstance(algorithm, Algorithm)  # as a protocol
    check_algorithm(algorithm)
    assert type(make_algorithm(Duck, HALF)) is Duck  # by class, too


@pytest.mark.usefixtures("registry")
def test_a_class_registered_again_replaces_the_old_one():
    class Other(Duck):
        pass

    register(Duck)
    register(Other)
    assert ALGORITHMS["duck"] is Other


def test_what_cannot_be_registered():
    class NoJoin:
        name = "no-join"
        uses_proxy = estimates = False
        initial = assign = server_update = cluster_models = Duck.initial

    class Unfinished(Algorithm):
        name = "unfinished"
        initial = join = server_update = Duck.initial

    class Taken(Duck):
        name = "cdfl"

    class Slashed(Duck):
        name = "a/b"

    for wrong, message in (
        (
            NoJoin,
            r"NoJoin has no network, join, models_down; expected a name, or a class with network, initial, join",
        ),
        (Unfinished, r"Unfinished has no cluster_models; expected a name, or a class with"),
        (Taken, r"Taken has the name 'cdfl'; expected another one than cdfl, fedsoft"),
        (Slashed, r"Slashed has the name 'a/b'; expected a word of letters"),
        (CDFL(HALF), r"algorithm is a CDFL object; pass the class CDFL"),
        (3, r"algorithm is 3; expected a name, or a class with"),
    ):
        with pytest.raises(ValueError, match=message):
            register(wrong)
    assert register(CDFL) is CDFL  # ours may be passed by class
