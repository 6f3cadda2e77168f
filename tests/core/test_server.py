from math import log

import pytest
import torch

from cdfl.core import (
    Upload,
    estimate_mixture,
    initial_state,
    join,
    measure,
    paper,
    reading,
    relative,
    server_update,
    usual_after,
)

from .toy import AS_PRINTED, bits, forbidden, fresh_losses, pair

NAN, INF = float("nan"), float("inf")
# Of an upload of 2 to `pair`: measures (1, 49), (0, 48), (2, 8), above bars of 0; shares of the other cluster
# (.98, .02), (1, 0), (.8, .2); weighted raw = (.49 + .25 + .2, .01 + 0 + .05) = (.94, .06);
# and with this A the softmax has the ratio 3, so the mixture is (.75, .25).
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


def near(*values):
    return pytest.approx(values, abs=1e-6)


def read(tensor):
    return tuple(tensor.flatten().tolist())


# -- one upload, worked by hand


def test_one_upload():
    state, proxy = pair()  # w = (0, 10)
    after, reply = server_update(state, UPLOAD, BY_HAND, proxy)
    assert read(reply.mixture) == near(0.75, 0.25)
    assert read(reply.rates) == near(0.5, 0)  # the floor is 1/2: cluster 1 does not move
    assert read(after.cluster_models) == near(1, 10)  # half way from 0 to 2
    assert read(reply.personal_model) == near(3.25)  # .75 * 1 + .25 * 10: of the clusters as they are now
    assert (reply.epoch, reply.staleness, reply.deprecated) == (1, 1, False)
    assert after.epoch == 1
    assert read(after.cluster_epochs) == (1, 0)
    assert read(after.cluster_losses) == near(0, 1)  # (1 - 1)^2, (10 - 9)^2
    assert {reply.mixture.dtype, reply.rates.dtype} == {torch.float64}


def test_two_clusters_move():
    state, proxy = pair()
    after, reply = server_update(state, UPLOAD, BY_HAND.replace(rate_floor=0.2), proxy)
    assert read(reply.rates) == near(1 / 2, 1 / 6)  # .5 * (.75, .25) / .75
    assert read(after.cluster_models) == near(1, 26 / 3)  # 10 * 5/6 + 2 * 1/6
    assert read(reply.personal_model) == near(0.75 + 26 / 12)


def test_clusters_move_along_the_change_from_what_the_client_was_sent():
    state, proxy = pair()  # w = (0, 10)
    along = BY_HAND.replace(cluster_step="along")
    sent = Upload(UPLOAD.local_model, base_epoch=0, base_model=torch.tensor([5.0]))
    after, reply = server_update(state, sent, along, proxy)
    assert read(reply.rates) == near(0.5, 0)
    assert read(after.cluster_models) == near(-1.5, 10)  # half of 2 - 5
    assert read(reply.personal_model) == near(0.75 * -1.5 + 0.25 * 10)
    assert read(after.cluster_losses) == near(6.25, 1)  # (-1.5 - 1)^2, (10 - 9)^2


@pytest.mark.parametrize(("last_mixture", "moved"), [(None, -1.5), (torch.tensor([0.9, 0.1]).double(), 0.5)])
def test_a_change_from_a_model_that_is_gone_is_measured_from_today_s(last_mixture, moved):
    """The average is 5, the last mixture gives .9 * 0 + .1 * 10 = 1: half of 2 - 5, half of 2 - 1."""
    state, proxy = pair()
    after, _ = server_update(state, UPLOAD, BY_HAND.replace(cluster_step="along"), proxy, last_mixture)
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


def test_e_k_set_after_the_staleness_test():
    """Cluster 0 last moved at epoch 2, one after the client's model: not stale, though the upload is 6 old."""
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
    assert read(reply.mixture) == near(0.75, 0.25)  # what is remembered is the estimate
    assert read(after.cluster_models) == near(1, 10)


# -- deprecated clients and newcomers


def test_a_deprecated_upload_gets_its_last_mixture_of_today_s_clusters():
    state, _ = pair()
    state = state.replace(epoch=9)
    upload, settings = Upload(torch.tensor([2.0]), base_epoch=4), BY_HAND.replace(max_staleness=5)
    after, reply = server_update(state, upload, settings, forbidden, torch.tensor([0.2, 0.8]))
    assert read(reply.personal_model) == near(8)  # .2 * 0 + .8 * 10
    assert read(reply.mixture) == near(0.2, 0.8)
    assert read(reply.rates) == (0, 0)
    assert (reply.epoch, reply.staleness, reply.deprecated) == (10, 6, True)
    assert after.epoch == 10
    assert bits(after.cluster_models) == bits(state.cluster_models)
    assert read(after.cluster_epochs) == (0, 0)


def test_max_staleness_itself_is_not_too_old():
    state, proxy = pair()
    state = state.replace(epoch=9)
    _, reply = server_update(state, Upload(torch.tensor([2.0]), 5), BY_HAND.replace(max_staleness=5), proxy)
    assert (reply.staleness, reply.deprecated) == (5, False)


def test_a_deprecated_client_without_an_estimate_gets_the_average():
    state, _ = pair()
    _, reply = server_update(state, UPLOAD, BY_HAND.replace(max_staleness=0), forbidden)
    assert read(reply.personal_model) == near(5)
    assert read(reply.mixture) == (0.5, 0.5)


def test_a_deprecated_upload_s_reply_obeys_reply_clusters_too():
    state, _ = pair()
    settings = BY_HAND.replace(max_staleness=0, reply_clusters="moved")
    _, reply = server_update(state, UPLOAD, settings, forbidden, torch.tensor([0.2, 0.8]))
    assert read(reply.personal_model) == near(10)


def test_joining():
    state, _ = pair()
    state = state.replace(epoch=4)
    newcomer = join(state, BY_HAND)
    assert read(newcomer.personal_model) == near(5)  # u^0: the average
    assert read(newcomer.mixture) == (0.5, 0.5)
    known = join(state, BY_HAND, torch.tensor([0.2, 0.8]))
    assert read(known.personal_model) == near(8)
    for reply in (newcomer, known):
        assert (reply.epoch, reply.staleness, reply.deprecated) == (4, 0, False)
        assert read(reply.rates) == (0, 0)
    assert state.epoch == 4


@pytest.mark.parametrize("floor", ["mean", 0.9])
def test_a_newcomer_gets_the_average_of_all_under_every_reading(floor):
    state, _ = pair()
    reply = join(state, BY_HAND.replace(reply_clusters="moved", rate_floor=floor))
    assert read(reply.personal_model) == near(5)


def test_after_a_reply_the_client_s_next_upload_is_one_epoch_old():
    """tau = t after every reply, as the text says."""
    state, proxy = pair()
    state, reply = server_update(state, UPLOAD, BY_HAND, proxy)
    _, second = server_update(state, Upload(torch.tensor([2.0]), base_epoch=reply.epoch), BY_HAND, proxy)
    assert second.staleness == 1


# -- what is evaluated, and by whom the mixture is made


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


def test_precomputed_losses_are_used():
    state, proxy = pair()
    flipped = Upload(torch.tensor([2.0]), 0, losses=torch.tensor([49.0, 1.0]))
    _, reply = server_update(state, flipped, BY_HAND.replace(loss_weight=1, gap_weight=0), proxy)
    assert proxy.calls == [[1]]  # not the upload; only the cluster that moved
    # raw (.02, .98): the softmax has the ratio 3 ** (.96 / .88)
    assert read(reply.mixture) == near(1 / (1 + 3 ** (0.96 / 0.88)), 1 / (1 + 3 ** (-0.96 / 0.88)))


def test_precomputed_losses_change_nothing_when_they_are_right():
    state, proxy = pair()
    ahead = Upload(torch.tensor([2.0]), 0, losses=torch.tensor([1.0, 49.0]))
    after, reply = server_update(state, UPLOAD, BY_HAND, proxy)
    after_ahead, reply_ahead = server_update(state, ahead, BY_HAND, proxy)
    assert bits(reply.personal_model) == bits(reply_ahead.personal_model)
    assert bits(after.cluster_models) == bits(after_ahead.cluster_models)


def test_an_upload_that_brings_its_mixture_is_not_estimated():
    state, _ = pair()
    own = Upload(torch.tensor([2.0]), 0, mixture=torch.tensor([0.25, 0.75]))
    after, reply = server_update(state, own, BY_HAND, forbidden, estimate=forbidden)
    assert read(reply.mixture) == (0.25, 0.75)
    assert read(reply.rates) == near(0, 0.5)
    assert read(after.cluster_models) == near(0, 6)
    assert read(reply.personal_model) == near(4.5)


def test_an_estimate_after_uploads_that_brought_their_own_sees_the_clusters_as_they_are():
    """w moves to (0, 6) unseen. Then 2: gaps |1 - 1| and |(6 - 9)^2 - 49| = 40, not |1 - 49|."""
    state, proxy = pair()
    own = Upload(torch.tensor([2.0]), 0, mixture=torch.tensor([0.25, 0.75]))
    state, _ = server_update(state, own, BY_HAND, forbidden)
    seen = []

    def spy(losses, loss_gaps, distances, settings):
        seen.append((read(losses), read(loss_gaps), read(distances)))
        return torch.tensor([1.0, 0.0])

    state, _ = server_update(state, UPLOAD, BY_HAND, proxy, estimate=spy)
    assert seen == [((1, 49), (0, 40), (2, 4))]
    assert proxy.calls == [[1], [0, 1], [0]]  # what was left open; the upload; what moved
    assert torch.equal(state.cluster_losses, fresh_losses(state, proxy))


def test_the_estimator_can_be_replaced():
    state, proxy = pair()
    seen = []

    def stubborn(losses, loss_gaps, distances, settings):
        seen.append((read(losses), read(loss_gaps), read(distances), settings))
        return torch.tensor([0.0, 1.0], dtype=torch.float32)

    after, reply = server_update(state, UPLOAD, BY_HAND, proxy, estimate=stubborn)
    assert seen == [((1, 49), (0, 48), (2, 8), BY_HAND)]
    assert read(after.cluster_models) == near(0, 6)
    assert reply.mixture.dtype == torch.float64


@pytest.mark.parametrize("uploaded", [torch.float16, torch.float64])
def test_an_upload_in_another_precision_is_taken_in_the_server_s(uploaded):
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

RELATIVE = BY_HAND.replace(measures="relative", base_rate=0.0)  # moves nothing: every upload meets the same clusters


def test_the_first_relative_estimate_is_the_plain_one():
    state, proxy = pair()
    after, reply = server_update(state, UPLOAD, BY_HAND.replace(measures="relative"), proxy)
    plain, expected = server_update(state, UPLOAD, BY_HAND, proxy)
    assert bits(reply.mixture) == bits(expected.mixture)
    assert bits(after.cluster_models) == bits(plain.cluster_models)
    assert [read(values) for values in reply.measures] == [(1, 49), (0, 48), (2, 8)]  # as they were taken


def test_an_upload_is_compared_with_those_before_it_and_then_remembered():
    """Of 2 and of 4: losses (1, 49) and (9, 25), gaps (0, 48) and (8, 24), distances (2, 8) and (4, 6)."""
    state, proxy = pair()
    assert read(state.usual_measures) == (0,) * 6
    seen = []

    def spy(*measures_and_settings):
        seen.append([read(values) for values in measures_and_settings[:3]])
        return estimate_mixture(*measures_and_settings)

    state, _ = server_update(state, UPLOAD, RELATIVE, proxy, estimate=spy)
    assert read(state.usual_measures) == near(13, 37, 12, 36, 3.5, 6.5)  # half way from 25, 24 and 5
    state, reply = server_update(state, Upload(torch.tensor([4.0]), 1), RELATIVE, proxy, estimate=spy)
    assert seen[0] == [(1, 49), (0, 48), (2, 8)]
    assert seen[1] == [
        near(9 / 13 * 25, 25 / 37 * 25),
        near(8 / 12 * 24, 24 / 36 * 24),
        near(4 / 3.5 * 5, 6 / 6.5 * 5),
    ]
    assert [read(values) for values in reply.measures] == [(9, 25), (8, 24), (4, 6)]
    assert read(state.usual_measures) == near(35 / 3, 33, 32 / 3, 32, 11 / 3, 19 / 3)  # a third of the way to it


def test_a_rejected_upload_is_compared_and_not_remembered():
    careful = RELATIVE.replace(max_harm=2.0)
    state, proxy = pair()
    for _ in range(10):
        state, _ = server_update(state, UPLOAD, careful, proxy)
    bad = Upload(torch.tensor([-100.0]), 0)
    after, reply = server_update(state, bad, careful, proxy)
    measures = measure(state, bad, proxy)
    assert reply.rejected
    assert [bits(values) for values in reply.measures] == [bits(values) for values in measures]
    assert bits(reply.mixture) == bits(estimate_mixture(*relative(measures, state.usual_measures), careful))
    assert bits(reply.mixture) != bits(estimate_mixture(*measures, careful))
    assert bits(after.usual_measures) == bits(state.usual_measures)


def test_an_upload_that_is_not_measured_is_not_remembered():
    state, proxy = pair()
    state, _ = server_update(state, UPLOAD, RELATIVE, proxy)
    own = Upload(torch.tensor([2.0]), 0, mixture=torch.tensor([0.25, 0.75]))
    for upload, settings_ in ((own, RELATIVE), (UPLOAD, RELATIVE.replace(max_staleness=0))):
        after, reply = server_update(state, upload, settings_, proxy)
        assert reply.measures is None
        assert bits(after.usual_measures) == bits(state.usual_measures)
        again, _ = server_update(after, UPLOAD, RELATIVE, proxy)
        expected = usual_after(state.usual_measures, measure(after, UPLOAD, proxy), epoch=3)
        assert bits(again.usual_measures) == bits(expected)


@pytest.mark.parametrize("printed", [paper("digit-recognition"), reading("digit-recognition")])
def test_the_paper_compares_measures_as_they_are(printed):
    state, proxy = pair()
    state = state.replace(usual_measures=torch.tensor([[1.0, 9.0]] * 3).double())
    after, reply = server_update(state, UPLOAD, printed, proxy)
    assert bits(reply.mixture) == bits(estimate_mixture(*measure(state, UPLOAD, proxy), printed))
    assert after.usual_measures is state.usual_measures
    assert [read(values) for values in reply.measures] == [(1, 49), (0, 48), (2, 8)]


# -- what is refused, before anything moves


@pytest.mark.parametrize(("base_epoch", "epoch"), [(1, 0), (-1, 5), (6, 5)])
def test_a_base_epoch_that_cannot_be_is_refused(base_epoch, epoch):
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
def test_a_diverged_model_is_refused(bad, max_staleness):
    state, _ = pair()
    with pytest.raises(ValueError, match="uploaded model contains NaN or infinity"):
        server_update(state, Upload(torch.tensor([bad]), 0), BY_HAND.replace(max_staleness=max_staleness), forbidden)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_loss_that_is_no_number_is_refused_whoever_computed_it(bad):
    state, _ = pair()
    losses = torch.tensor([1.0, bad])
    complaint = rf"losses of the upload: \[1.0, {bad}\]; expected finite numbers"
    with pytest.raises(ValueError, match=complaint):
        server_update(state, UPLOAD, BY_HAND, lambda models, clusters: losses, estimate=forbidden)
    with pytest.raises(ValueError, match=complaint):
        server_update(state, Upload(torch.tensor([2.0]), 0, losses=losses), BY_HAND, forbidden, estimate=forbidden)


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
def test_a_mixture_that_is_none_is_refused_wherever_it_comes_from(wrong):
    state, proxy = pair()
    wrong = torch.tensor(wrong)
    complaint = r"the mixture (is|has shape) .*; expected"
    with pytest.raises(ValueError, match=complaint):
        server_update(state, Upload(torch.tensor([2.0]), 0, mixture=wrong), BY_HAND, forbidden)
    with pytest.raises(ValueError, match=complaint):
        server_update(state, UPLOAD, BY_HAND, proxy, estimate=lambda *measures: wrong)
    with pytest.raises(ValueError, match=complaint):
        server_update(state, UPLOAD, BY_HAND.replace(max_staleness=0), forbidden, wrong)
    with pytest.raises(ValueError, match=complaint):
        join(state, BY_HAND, wrong)


def test_the_paper_s_own_bar_warns_and_goes_on():
    state, proxy = pair()
    with pytest.warns(RuntimeWarning, match="loss_bar is 8, above a value"):
        after, reply = server_update(state, UPLOAD, BY_HAND.replace(loss_bar=8), proxy)
    # losses (1, 49) less 8: (-7, 41)/34, shares (41/34, -7/34): weighted raw (.5 * 41/34 + .45, .05 - .5 * 7/34)
    gap = 0.5 * 48 / 34 + 0.4
    assert read(reply.mixture) == near(1 / (1 + 3 ** (-gap / 0.88)), 1 / (1 + 3 ** (gap / 0.88)))
    assert bool(torch.isfinite(after.cluster_models).all())
