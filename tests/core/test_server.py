from math import log

import pytest
import torch

from cdfl.core import (
    DEFAULT,
    GIVEN,
    NEWCOMER,
    UNMEASURED,
    ClientMemory,
    Limited,
    NotFiniteError,
    Upload,
    Verdict,
    estimate_mixture,
    estimator_of,
    initial_state,
    join,
    measure,
    paper,
    personalize,
    reading,
    server_update,
)
from cdfl.core.estimate import means_after, with_losses
from cdfl.core.state import ACCEPTED

from .toy import AS_PRINTED, Fixed, bits, forbidden, fresh_losses, pair

NAN, INF = float("nan"), float("inf")
# An upload of 2 to `pair` has the measures (1, 49), (0, 48), (2, 8). With bars of 0, the shares of the other cluster
# are (.98, .02), (1, 0), (.8, .2); weighted: (.49 + .25 + .2, .01 + 0 + .05) = (.94, .06). With this A the softmax
# gives them the ratio 3, so the mixture is (.75, .25).
BY_HAND = AS_PRINTED.replace(
    loss_weight=0.5,
    gap_weight=0.25,
    sharpness=(log(3) / 0.88,),
    loss_bar=0.0,
    gap_bar=0.0,
    distance_bar=0.0,
    base_rate=0.5,
)
UPLOAD = Upload(torch.tensor([2.0]), base_epoch=0)
WITH_MIXTURE = UPLOAD.replace(mixture=torch.tensor([0.25, 0.75]))
KNOWN = ClientMemory(torch.tensor([0.2, 0.8]))  # a client with this last mixture


def near(*values):
    return pytest.approx(values, abs=1e-6)


def read(tensor):
    return tuple(tensor.flatten().tolist())


def measured(state, upload, evaluate):
    return measure(*with_losses(state, upload, estimator_of(DEFAULT), evaluate))


# -- one upload, worked by hand


def test_one_upload():
    state, proxy = pair()  # w = (0, 10)
    after, reply = server_update(state, UPLOAD, BY_HAND, proxy)
    assert read(reply.mixture) == near(0.75, 0.25)
    assert read(reply.rates) == near(0.5, 0)  # the floor is 1/2: cluster 1 does not move
    assert read(after.cluster_models) == near(1, 10)  # half way from 0 to 2
    assert read(reply.personal_model) == near(3.25)  # .75 * 1 + .25 * 10: of the clusters after the step
    assert (reply.epoch, reply.staleness, reply.outcome) == (1, 1, "applied")
    assert after.epoch == 1
    assert read(after.cluster_epochs) == (1, 0)
    assert read(after.cluster_losses) == near(0, 1)  # (1 - 1)^2, (10 - 9)^2
    assert {reply.mixture.dtype, reply.rates.dtype} == {torch.float64}
    assert [read(values) for values in reply.measures] == [(1, 49), (0, 48), (2, 8)]
    assert reply.verdict.is_accepted
    assert reply.client == ClientMemory(reply.mixture, ())


def test_two_clusters_move():
    state, proxy = pair()
    after, reply = server_update(state, UPLOAD, BY_HAND.replace(rate_floor=0.2), proxy)
    assert read(reply.rates) == near(1 / 2, 1 / 6)  # .5 * (.75, .25) / .75
    assert read(after.cluster_models) == near(1, 26 / 3)  # 10 * 5/6 + 2 * 1/6
    assert read(reply.personal_model) == near(0.75 + 26 / 12)


def test_clusters_move_along_the_change_from_the_base_model():
    state, proxy = pair()  # w = (0, 10)
    along = BY_HAND.replace(cluster_step="along")
    sent = Upload(UPLOAD.local_model, base_epoch=0, base_model=torch.tensor([5.0]))
    after, reply = server_update(state, sent, along, proxy)
    assert read(reply.rates) == near(0.5, 0)
    assert read(after.cluster_models) == near(-1.5, 10)  # half of 2 - 5
    assert read(reply.personal_model) == near(0.75 * -1.5 + 0.25 * 10)
    assert read(after.cluster_losses) == near(6.25, 1)  # (-1.5 - 1)^2, (10 - 9)^2


@pytest.mark.parametrize(
    ("client", "moved"), [(NEWCOMER, -1.5), (ClientMemory(torch.tensor([0.9, 0.1]).double()), 0.5)]
)
def test_without_a_base_model_the_change_begins_at_the_last_mixture_of_the_clusters(client, moved):
    """The average is 5, the last mixture gives .9 * 0 + .1 * 10 = 1: half of 2 - 5, half of 2 - 1."""
    state, proxy = pair()
    after, _ = server_update(state, UPLOAD, BY_HAND.replace(cluster_step="along"), proxy, client)
    assert read(after.cluster_models) == near(moved, 10)


def test_a_stale_upload():
    """Epoch 7 after base epoch 1: s = 6, a = .5, b = 5, so beta_2 = 1/4; the continuous hinge: 1/(.5 * 1 + 1)."""
    state, proxy = pair()
    state = state.replace(epoch=6)
    upload = Upload(torch.tensor([2.0]), base_epoch=1)
    stale = BY_HAND.replace(staleness_slope=0.5, staleness_grace=5)
    after, reply = server_update(state, upload, stale, proxy)
    assert (reply.epoch, reply.staleness) == (7, 6)
    assert read(reply.rates) == near(0.5 / 4, 0)
    assert read(after.cluster_models) == near(0.25, 10)
    _, reply = server_update(state, upload, stale.replace(staleness_hinge="continuous"), proxy)
    assert read(reply.rates) == near(0.5 / 1.5, 0)


def test_cluster_epochs_set_after_the_staleness_test():
    """Cluster 0 last moved at epoch 2, one after the client's model: not stale, though the upload is 6 epochs old."""
    state, proxy = pair()
    state = state.replace(epoch=6, cluster_epochs=torch.tensor([2, 0]))
    upload = Upload(torch.tensor([2.0]), base_epoch=1)
    stale = BY_HAND.replace(staleness_slope=0.5, staleness_grace=5)
    _, before = server_update(state, upload, stale, proxy)
    state, after = server_update(state, upload, stale.replace(cluster_epochs_set="after"), proxy)
    assert read(before.rates) == near(0.125, 0)
    assert read(after.rates) == near(0.5, 0)
    assert read(state.cluster_epochs) == (7, 0)


def test_a_reply_of_the_moved_clusters_only():
    state, proxy = pair()
    after, reply = server_update(state, UPLOAD, BY_HAND.replace(reply_clusters="moved"), proxy)
    assert read(reply.personal_model) == near(1)  # cluster 0 alone; with "all" it is 3.25
    assert read(reply.mixture) == near(0.75, 0.25)  # the estimate is of all clusters
    assert read(after.cluster_models) == near(1, 10)


# -- deprecated clients and newcomers


def test_a_deprecated_upload_is_answered_with_its_client_s_last_mixture():
    state, _ = pair()
    state = state.replace(epoch=9)
    upload, settings = Upload(torch.tensor([2.0]), base_epoch=4), BY_HAND.replace(max_staleness=5)
    after, reply = server_update(state, upload, settings, forbidden, KNOWN)
    assert read(reply.personal_model) == near(8)  # .2 * 0 + .8 * 10
    assert read(reply.mixture) == near(0.2, 0.8)
    assert read(reply.rates) == (0, 0)
    assert (reply.epoch, reply.staleness, reply.outcome) == (10, 6, "deprecated")
    assert reply.measures is UNMEASURED
    assert after.epoch == 10
    assert bits(after.cluster_models) == bits(state.cluster_models)
    assert read(after.cluster_epochs) == (0, 0)


def test_an_upload_of_max_staleness_is_applied():
    state, proxy = pair()
    state = state.replace(epoch=9)
    _, reply = server_update(state, Upload(torch.tensor([2.0]), 5), BY_HAND.replace(max_staleness=5), proxy)
    assert (reply.staleness, reply.outcome) == (5, "applied")


def test_a_deprecated_newcomer_gets_the_average():
    state, _ = pair()
    _, reply = server_update(state, UPLOAD, BY_HAND.replace(max_staleness=0), forbidden)
    assert read(reply.personal_model) == near(5)
    assert read(reply.mixture) == (0.5, 0.5)


def test_reply_clusters_also_holds_for_deprecated_uploads():
    state, _ = pair()
    settings = BY_HAND.replace(max_staleness=0, reply_clusters="moved")
    _, reply = server_update(state, UPLOAD, settings, forbidden, KNOWN)
    assert read(reply.personal_model) == near(10)


def test_join():
    state, _ = pair()
    state = state.replace(epoch=4)
    newcomer = join(state, BY_HAND)
    assert read(newcomer.personal_model) == near(5)  # u^0: the average
    assert read(newcomer.mixture) == (0.5, 0.5)
    known = join(state, BY_HAND, KNOWN._replace(defence=(3.0,)))
    assert read(known.personal_model) == near(8)
    for reply in (newcomer, known):
        assert (reply.epoch, reply.staleness, reply.outcome) == (4, 0, "applied")
        assert read(reply.rates) == (0, 0)
    assert state.epoch == 4
    assert (newcomer.client.defence, known.client.defence) == ((), (3.0,))


@pytest.mark.parametrize("floor", ["mean", 0.9])
def test_a_newcomer_gets_the_average_for_every_rate_floor(floor):
    state, _ = pair()
    reply = join(state, BY_HAND.replace(reply_clusters="moved", rate_floor=floor))
    assert read(reply.personal_model) == near(5)


def test_the_next_upload_after_a_reply_is_one_epoch_old():
    """tau = t after every reply, as the text says."""
    state, proxy = pair()
    state, reply = server_update(state, UPLOAD, BY_HAND, proxy)
    _, second = server_update(state, Upload(torch.tensor([2.0]), base_epoch=reply.epoch), BY_HAND, proxy)
    assert second.staleness == 1


# -- evaluations and estimators


def test_only_clusters_that_moved_are_evaluated_again():
    state, proxy = pair()
    state, _ = server_update(state, UPLOAD, BY_HAND, proxy)
    assert proxy.calls == [[0, 1], [0]]  # the upload on both proxy sets; then cluster 0, which moved
    proxy.calls.clear()
    state, _ = server_update(state, UPLOAD, BY_HAND.replace(rate_floor=0), proxy)
    assert proxy.calls == [[0, 1], [0, 1]]
    proxy.calls.clear()
    server_update(state, UPLOAD, BY_HAND.replace(rate_floor=1), proxy)
    assert proxy.calls == [[0, 1]]


def test_losses_of_the_upload_are_used():
    state, proxy = pair()
    flipped = Upload(torch.tensor([2.0]), 0, losses=torch.tensor([49.0, 1.0]))
    _, reply = server_update(state, flipped, BY_HAND.replace(loss_weight=1, gap_weight=0), proxy)
    assert proxy.calls == [[1]]  # not the upload; only the cluster that moved
    # raw (.02, .98): the softmax has the ratio 3 ** (.96 / .88)
    assert read(reply.mixture) == near(1 / (1 + 3 ** (0.96 / 0.88)), 1 / (1 + 3 ** (-0.96 / 0.88)))


def test_losses_of_the_upload_change_nothing_if_they_are_right():
    state, proxy = pair()
    ahead = UPLOAD.replace(losses=torch.tensor([1.0, 49.0]))
    after, reply = server_update(state, UPLOAD, BY_HAND, proxy)
    after_ahead, reply_ahead = server_update(state, ahead, BY_HAND, proxy)
    assert bits(reply.personal_model) == bits(reply_ahead.personal_model)
    assert bits(after.cluster_models) == bits(after_ahead.cluster_models)


def test_a_given_mixture_needs_no_evaluation():
    state, _ = pair()
    after, reply = server_update(state, WITH_MIXTURE, BY_HAND, forbidden, estimator=GIVEN)
    assert reply.measures is UNMEASURED
    assert after.cluster_losses.isnan().tolist() == [False, True]  # cluster 1 moved
    assert read(reply.mixture) == (0.25, 0.75)
    assert read(reply.rates) == near(0, 0.5)
    assert read(after.cluster_models) == near(0, 6)
    assert read(reply.personal_model) == near(4.5)


class Counting:
    """An estimator of equal shares that counts uploads in its memory, from 10 on."""

    needs_measures = False

    def begin(self, num_clusters):
        return torch.tensor([10.0])

    def __call__(self, upload, measures, memory, epoch):
        return torch.tensor([0.5, 0.5]), memory + 1


def test_an_estimator_begins_with_its_own_memory():
    state, _ = pair()
    for count in (11, 12):
        state, _ = server_update(state, UPLOAD, BY_HAND, forbidden, estimator=Counting())
        assert state.estimator_memory.tolist() == [count]


def test_the_mixture_of_an_upload_is_ignored_without_the_estimator_for_it():
    state, proxy = pair()
    _, expected = server_update(state, UPLOAD, BY_HAND, proxy)
    _, reply = server_update(state, WITH_MIXTURE, BY_HAND, proxy)
    assert bits(reply.mixture) == bits(expected.mixture)
    with pytest.raises(ValueError, match="the upload has no mixture; expected one"):
        server_update(state, UPLOAD, BY_HAND, forbidden, estimator=GIVEN)


def test_an_estimate_after_given_mixtures_evaluates_the_clusters_that_moved():
    """w moves to (0, 6). An upload of 2 then has the gaps |1 - 1| and |(6 - 9)^2 - 49| = 40, not |1 - 49|."""
    state, proxy = pair()
    state, _ = server_update(state, WITH_MIXTURE, BY_HAND, forbidden, estimator=GIVEN)
    estimator = Fixed(1.0, 0.0)
    state, _ = server_update(state, UPLOAD, BY_HAND, proxy, estimator=estimator)
    assert estimator.seen == [[[1, 49], [0, 40], [2, 4]]]
    assert proxy.calls == [[1], [0, 1], [0]]  # cluster 1, which moved before; the upload; cluster 0, which moved now
    assert torch.equal(state.cluster_losses, fresh_losses(state, proxy))


def test_the_estimator_can_be_replaced():
    state, proxy = pair()
    estimator = Fixed(0.0, 1.0)
    after, reply = server_update(state, UPLOAD, BY_HAND, proxy, estimator=estimator)
    assert estimator.seen == [[[1, 49], [0, 48], [2, 8]]]
    assert read(after.cluster_models) == near(0, 6)
    assert reply.mixture.dtype == torch.float64


def test_an_estimator_keeps_its_memory_in_the_state():
    class Counting(Fixed):
        def __call__(self, upload, measures, memory, epoch):
            return self.mixture, torch.cat([memory, torch.tensor([float(epoch)])])

    state, proxy = pair()
    estimator, memories = Counting(0.5, 0.5), []
    for max_staleness in (None, None, 0, None):  # the third upload is deprecated
        settings = BY_HAND.replace(max_staleness=max_staleness)
        state, _ = server_update(state, UPLOAD, settings, proxy, estimator=estimator)
        memories.append(state.estimator_memory.tolist())
    assert memories == [[1], [1, 2], [1, 2], [1, 2, 4]]


@pytest.mark.parametrize("uploaded", [torch.float16, torch.float64])
def test_an_upload_of_another_dtype_is_converted(uploaded):
    state, proxy = pair()

    def strict(models, clusters):
        assert models.dtype == torch.float32
        return proxy(models, clusters)

    after, reply = server_update(state, Upload(torch.tensor([2.0], dtype=uploaded), 0), BY_HAND, strict)
    assert {after.cluster_models.dtype, reply.personal_model.dtype} == {torch.float32}
    assert read(after.cluster_models) == near(1, 10)


def test_buffers_are_mixed_like_parameters_and_do_not_count_in_distances():
    """Vectors of a parameter and a statistic; one proxy loss for all, so that distances alone decide."""
    models = torch.tensor([[0.0, 5.0], [10.0, -7.0]])
    state = initial_state(models, lambda models, clusters: torch.ones(len(clusters)), num_parameters=1)
    upload = Upload(torch.tensor([2.0, -7.0]), 0)  # nearer to cluster 0 by parameter, to cluster 1 by statistic
    settings = BY_HAND.replace(loss_weight=0, gap_weight=0, sharpness=(log(3) / 0.6,))  # raw (.8, .2)
    after, reply = server_update(state, upload, settings, lambda models, clusters: torch.ones(len(clusters)))
    assert read(reply.mixture) == near(0.75, 0.25)
    assert read(after.cluster_models) == near(1, -1, 10, -7)  # (0 + 2)/2, (5 - 7)/2; cluster 1 stays
    assert read(reply.personal_model) == near(3.25, -2.5)


# -- relative measures

RELATIVE = BY_HAND.replace(measures="relative", base_rate=0.0)  # no cluster moves: every upload meets the same clusters


def test_the_first_relative_estimate_is_the_plain_one():
    state, proxy = pair()
    after, reply = server_update(state, UPLOAD, BY_HAND.replace(measures="relative"), proxy)
    plain, expected = server_update(state, UPLOAD, BY_HAND, proxy)
    assert bits(reply.mixture) == bits(expected.mixture)
    assert bits(after.cluster_models) == bits(plain.cluster_models)
    assert [read(values) for values in reply.measures] == [(1, 49), (0, 48), (2, 8)]


def test_an_upload_is_compared_with_those_before_it_and_then_remembered():
    """Uploads of 2 and 4: losses (1, 49) and (9, 25), gaps (0, 48) and (8, 24), distances (2, 8) and (4, 6)."""
    state, proxy = pair()
    assert len(state.estimator_memory) == 0
    state, _ = server_update(state, UPLOAD, RELATIVE, proxy)
    assert read(state.estimator_memory) == near(13, 37, 12, 36, 3.5, 6.5)  # half way from 25, 24 and 5
    state, reply = server_update(state, Upload(torch.tensor([4.0]), 1), RELATIVE, proxy)
    # relative losses, gaps and distances, divided by their sums; (1 - x) weighted by .5, .25, .25
    compared = [(9 / 13, 25 / 37), (8 / 12, 24 / 36), (4 / 3.5, 6 / 6.5)]
    raw = sum(weight * (1 - x / (x + y)) for weight, (x, y) in zip((0.5, 0.25, 0.25), compared, strict=True))
    odds = 3 ** ((2 * raw - 1) / 0.88)
    assert read(reply.mixture) == near(odds / (1 + odds), 1 / (1 + odds))
    assert [read(values) for values in reply.measures] == [(9, 25), (8, 24), (4, 6)]  # as they were measured
    assert read(state.estimator_memory) == near(35 / 3, 33, 32 / 3, 32, 11 / 3, 19 / 3)  # a third of the way


class Refuse:
    """A defence that refuses every step."""

    needs_base, counts_deprecated = False, True

    def admit(self, state, upload, client):
        return upload, ACCEPTED

    def limit(self, state, upload, rates, client, settings, evaluate):
        return Limited(rates, state.cluster_losses, Verdict(False, (1.0,), (2.0,), "no"))


@pytest.mark.parametrize("base_model", [torch.tensor([3.0]), None])
def test_a_rejected_upload_is_answered_with_the_model_that_its_client_was_sent(base_model):
    """It changes nothing, ages nobody, and its client learns nothing new of the clusters."""
    state, proxy = pair()
    for _ in range(4):
        state, _ = server_update(state, UPLOAD, RELATIVE, proxy)
    client, bad = ClientMemory(torch.tensor([0.25, 0.75]).double()), Upload(torch.tensor([-9.0]), 2)
    after, reply = server_update(state, bad.replace(base_model=base_model), RELATIVE, proxy, client, defence=Refuse())
    assert after is state
    assert (reply.outcome, reply.epoch, reply.staleness) == ("rejected", 2, 3)
    assert [bits(values) for values in reply.measures] == [bits(values) for values in measured(state, bad, proxy)]
    assert bits(reply.mixture) == bits(client.mixture)
    assert not reply.rates.any()
    sent = personalize(state.cluster_models, client.mixture) if base_model is None else base_model
    assert bits(reply.personal_model) == bits(sent)
    assert reply.client.defence == (2.0,)


def test_an_upload_that_is_not_measured_is_not_remembered():
    state, proxy = pair()
    state, _ = server_update(state, UPLOAD, RELATIVE, proxy)
    for upload, settings, estimator in (
        (WITH_MIXTURE, RELATIVE, GIVEN),
        (UPLOAD, RELATIVE.replace(max_staleness=0), None),
    ):
        after, reply = server_update(state, upload, settings, proxy, estimator=estimator)
        assert reply.measures is UNMEASURED
        assert after.estimator_memory is state.estimator_memory
        again, _ = server_update(after, UPLOAD, RELATIVE, proxy)
        assert bits(again.estimator_memory) == bits(
            means_after(state.estimator_memory, measured(after, UPLOAD, proxy), epoch=3)
        )


@pytest.mark.parametrize("printed", [paper("digit-recognition"), reading("digit-recognition")])
def test_the_paper_compares_measures_as_they_are(printed):
    state, proxy = pair()
    state = state.replace(estimator_memory=torch.tensor([[1.0, 9.0]] * 3).double())
    after, reply = server_update(state, UPLOAD, printed, proxy)
    assert bits(reply.mixture) == bits(estimate_mixture(measured(state, UPLOAD, proxy), printed.estimate))
    assert after.estimator_memory is state.estimator_memory
    assert [read(values) for values in reply.measures] == [(1, 49), (0, 48), (2, 8)]


# -- uploads that are refused


@pytest.mark.parametrize(("base_epoch", "epoch"), [(1, 0), (-1, 5), (6, 5)])
def test_an_impossible_base_epoch_is_refused(base_epoch, epoch):
    state, _ = pair()
    with pytest.raises(ValueError, match=rf"base_epoch is {base_epoch}; expected 0 to {epoch}, the server's epoch"):
        server_update(state.replace(epoch=epoch), Upload(torch.tensor([2.0]), base_epoch), BY_HAND, forbidden)


@pytest.mark.parametrize("shape", [(2,), (1, 1), ()])
def test_a_model_of_another_shape_is_refused(shape):
    state, _ = pair()
    with pytest.raises(ValueError, match=r"uploaded model has shape .*; expected \(1,\)") as caught:
        server_update(state, Upload(torch.zeros(shape), 0), BY_HAND, forbidden)
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("max_staleness", [None, 0])
def test_a_model_that_is_not_finite_is_refused(bad, max_staleness):
    state, _ = pair()
    with pytest.raises(NotFiniteError, match="uploaded model contains NaN or infinity"):
        server_update(state, Upload(torch.tensor([bad]), 0), BY_HAND.replace(max_staleness=max_staleness), forbidden)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_losses_of_an_upload_that_are_not_finite_are_refused(bad):
    state, _ = pair()
    losses = torch.tensor([1.0, bad])
    complaint = rf"losses of the upload: \[1.0, {bad}\]; expected finite numbers"
    with pytest.raises(NotFiniteError, match=complaint):
        server_update(state, UPLOAD, BY_HAND, lambda models, clusters: losses)
    with pytest.raises(NotFiniteError, match=complaint):
        server_update(state, UPLOAD.replace(losses=losses), BY_HAND, forbidden)


def test_an_upload_whose_distances_overflow_is_refused():
    """float32 holds the model, but not its squared distance."""
    models = torch.tensor([[0.0, 0.0], [10.0, 10.0]])
    evaluate = lambda models, clusters: torch.ones(len(clusters))  # noqa: E731
    upload = Upload(torch.tensor([3e38, 3e38]), 0)
    with pytest.raises(NotFiniteError, match=r"the distances of the upload: \[inf, inf\]; expected finite numbers"):
        server_update(initial_state(models, evaluate), upload, BY_HAND, evaluate)


@pytest.mark.parametrize("shape", [(1,), (3,), (1, 2), ()])
def test_losses_of_an_upload_of_a_wrong_shape_are_refused(shape):
    state, _ = pair()
    with pytest.raises(
        ValueError, match=r"losses of the upload has shape .*; expected one number for each cluster, \(2,\)"
    ):
        server_update(state, UPLOAD.replace(losses=torch.ones(shape)), BY_HAND, forbidden)


def test_an_upload_that_would_make_a_cluster_diverge_is_refused():
    """Otherwise every later upload would fail on this cluster's loss."""
    state, proxy = pair()

    def evaluate(models, clusters):
        return proxy(models, clusters) if len(clusters) == 2 else torch.tensor([INF])

    with pytest.raises(ValueError, match=r"losses of clusters \[0\]: \[inf\]; expected finite numbers"):
        server_update(state, UPLOAD, BY_HAND, evaluate)


@pytest.mark.parametrize(
    "wrong", [[0.5, 0.6], [1.5, -0.5], [NAN, 1.0], [INF, 0.0], [1.0], [0.5, 0.25, 0.25], [[0.5, 0.5]]]
)
def test_a_wrong_mixture_is_refused_from_every_source(wrong):
    state, proxy = pair()
    wrong = torch.tensor(wrong, dtype=torch.float64)
    complaint = r"the mixture (is|has shape) .*; expected"
    with pytest.raises(ValueError, match=complaint):
        server_update(state, UPLOAD.replace(mixture=wrong), BY_HAND, forbidden, estimator=GIVEN)
    with pytest.raises(ValueError, match=complaint):
        server_update(state, UPLOAD, BY_HAND, proxy, estimator=Fixed(*wrong.tolist()))
    with pytest.raises(ValueError, match=complaint):
        server_update(state, UPLOAD, BY_HAND.replace(max_staleness=0), forbidden, ClientMemory(wrong))
    with pytest.raises(ValueError, match=complaint):
        join(state, BY_HAND, ClientMemory(wrong))


def test_a_bar_above_the_losses_warns():
    state, proxy = pair()
    with pytest.warns(RuntimeWarning, match="loss_bar is 8, above a measured value"):
        after, reply = server_update(state, UPLOAD, BY_HAND.replace(loss_bar=8), proxy)
    # losses (1, 49) less 8: (-7, 41)/34, shares (41/34, -7/34): weighted raw (.5 * 41/34 + .45, .05 - .5 * 7/34)
    gap = 0.5 * 48 / 34 + 0.4
    assert read(reply.mixture) == near(1 / (1 + 3 ** (-gap / 0.88)), 1 / (1 + 3 ** (gap / 0.88)))
    assert bool(torch.isfinite(after.cluster_models).all())
