import itertools
import warnings
from math import exp, log

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cdfl.core import (
    GIVEN,
    UNMEASURED,
    EstimateSettings,
    Measures,
    PrintedEstimator,
    RelativeEstimator,
    Settings,
    Upload,
    estimate_mixture,
    estimator_of,
    initial_state,
    measure,
)
from cdfl.core.estimate import RECENT, means_after, relative, with_losses

from .toy import Proxy, bits, forbidden, pair

NAN, INF = float("nan"), float("inf")
BARS = {"loss_bar": 0.0, "gap_bar": 0.0, "distance_bar": 0.0}


def measures_of(*rows):
    return Measures(*torch.tensor(rows, dtype=torch.float64))


def estimate(losses, loss_gaps, distances, **changes):
    return estimate_mixture(measures_of(losses, loss_gaps, distances), EstimateSettings(**changes))


def measured(state, upload, evaluate):
    """The measures of an upload whose losses may be unknown yet."""
    return measure(*with_losses(state, upload, estimator_of(Settings()), evaluate))


def close(mixture, expected):
    assert mixture.tolist() == pytest.approx(expected, abs=1e-12)


# -- line 3: what the server measures


def test_measures_worked_by_hand():
    state, proxy = pair()  # w = (0, 10), centres (1, 9), F(w_k; D_k) = (1, 1)
    measures = measured(state, Upload(torch.tensor([2.0]), 0), proxy)
    assert measures.losses.tolist() == [1, 49]  # (2 - 1)^2, (2 - 9)^2
    assert measures.loss_gaps.tolist() == [0, 48]  # |1 - 1|, |1 - 49|
    assert measures.distances.tolist() == [2, 8]  # |2 - 0|, |2 - 10|
    assert {values.dtype for values in measures} == {torch.float64}
    assert proxy.calls == [[0, 1]]


def test_losses_that_are_known_are_not_evaluated_again():
    state, _ = pair()
    measures = measured(state, Upload(torch.tensor([2.0]), 0, losses=torch.tensor([3.0, 0.5])), forbidden)
    assert measures.losses.tolist() == [3, 0.5]
    assert measures.loss_gaps.tolist() == [2, 0.5]


def test_an_upload_without_losses_is_not_measured():
    state, _ = pair()
    assert measure(state, Upload(torch.tensor([2.0]), 0)) is UNMEASURED


def test_distances_ignore_buffers():
    """Vectors of two parameters and one running variance: only the parameters count, 3-4-5 triangles."""
    models = torch.tensor([[0.0, 0.0, 1.0], [6.0, 0.0, 900.0]])
    proxy = Proxy(models)
    upload = Upload(torch.tensor([3.0, 4.0, 70.0]), 0)
    assert measured(initial_state(models, proxy, num_parameters=2), upload, proxy).distances.tolist() == [5, 5]
    assert measured(initial_state(models, proxy), upload, proxy).distances[0].item() > 69


# -- lines 4-6: bars, shares of the others, softmax


def test_min_bars_worked_by_hand():
    """Each line: the measures, less their minimum, then 1 - x / sum.

    losses    1 2 5 -> 0 1 4 -> 1    .8   .2
    gaps      3 1 2 -> 2 0 1 -> 1/3  1    2/3
    distances 4 4 7 -> 0 0 3 -> 1    1    0
    .5, .25, .25 of them, halved (K - 1 = 2): 5/12, 9/20, 2/15. Then softmax of 10 times that.
    """
    raw = (5 / 12, 9 / 20, 2 / 15)
    assert sum(raw) == pytest.approx(1)
    powers = [exp(10 * value) for value in raw]
    mixture = estimate([1, 2, 5], [3, 1, 2], [4, 4, 7], loss_weight=0.5, gap_weight=0.25, sharpness=(10,))
    close(mixture, [power / sum(powers) for power in powers])
    assert mixture.tolist() == pytest.approx([0.407426, 0.568610, 0.023963], abs=1e-6)


def test_numeric_bars_worked_by_hand():
    """Losses 9 12 17 less 8: 1 4 9, sum 14; gaps 1 1 2 less 0: sum 4; no weight on distances; A = 1."""
    raw = [0.5 * (0.5 * (1 - x / 14) + 0.5 * (1 - y / 4)) for x, y in zip((1, 4, 9), (1, 1, 2), strict=True)]
    powers = [exp(value) for value in raw]
    mixture = estimate([9, 12, 17], [1, 1, 2], [5, 6, 7], **BARS | {"loss_bar": 8}, gap_weight=0.5, sharpness=(1,))
    close(mixture, [power / sum(powers) for power in powers])


def test_each_measure_has_its_own_weight():
    """Two clusters, min bars: each measure counts wholly for one; the raw shares are (c1 + c2, rest)."""
    mixture = estimate([0, 1], [0, 1], [1, 0], loss_weight=0.6, gap_weight=0.3, sharpness=(5,))
    close(mixture, [1 / (1 + exp(-5 * (0.9 - 0.1))), 1 / (1 + exp(5 * (0.9 - 0.1)))])


def test_softmax_is_repeated_once_for_each_factor():
    """K = 2, raw (1, 0): A = ln 3 gives (.75, .25); then A = 4 ln 3 gives a ratio of 3^(4 * .5) = 9."""
    once = estimate([0, 1], [0, 1], [0, 1], sharpness=(log(3),))
    close(once, [0.75, 0.25])
    twice = estimate([0, 1], [0, 1], [0, 1], sharpness=(log(3), 4 * log(3)))
    close(twice, [0.9, 0.1])


# -- where the formula has no value


def test_one_cluster_has_the_whole_mixture():
    assert estimate([5.0], [1.0], [0.0]).tolist() == [1.0]
    assert estimate([5.0], [1.0], [0.0], **BARS | {"loss_bar": 8}).tolist() == [1.0]


@pytest.mark.parametrize("num_clusters", range(2, 9))
@pytest.mark.parametrize("main_share", [0.5, 0.65, 0.9])
def test_without_a_sharpness_the_nearest_cluster_gets_the_main_share(num_clusters, main_share):
    values = [0.5] + [2.0] * (num_clusters - 1)
    mixture = estimate(values, values, values, main_share=main_share)
    close(mixture, [main_share] + [(1 - main_share) / (num_clusters - 1)] * (num_clusters - 1))


def test_a_main_share_below_the_mean_does_not_reverse_the_ranking():
    close(estimate([0, 1, 1], [0, 1, 1], [0, 1, 1], main_share=0.1), [1 / 3] * 3)


@pytest.mark.parametrize("num_clusters", [2, 3, 6])
def test_equal_measures_with_min_bars_give_equal_shares(num_clusters):
    same = [0.7] * num_clusters
    close(estimate(same, same, same), [1 / num_clusters] * num_clusters)


def test_a_measure_that_is_equal_everywhere_leaves_the_others_to_decide():
    """Losses are equal, the rest counts wholly for cluster 0: raw = .5 * (.5, .5) + .5 * (1, 0) = (.75, .25)."""
    close(estimate([4, 4], [0, 1], [0, 1], sharpness=(2 * log(3),)), [0.75, 0.25])


def test_measures_equal_to_their_numeric_bars_give_equal_shares():
    close(estimate([8, 8, 8], [0, 0, 0], [0, 0, 0], **BARS | {"loss_bar": 8}), [1 / 3] * 3)


@pytest.mark.parametrize("off", [0.0, 1e-9, -1e-9])
def test_terms_that_cancel_give_equal_shares(off):
    """Losses 7 and 9 less a bar of 8 sum to zero, or nearly: then the printed shares are of the order of 1e9."""
    with pytest.warns(RuntimeWarning, match="loss_bar is 8"):
        mixture = estimate([7, 9 + off], [1, 1], [1, 1], **BARS | {"loss_bar": 8})
    close(mixture, [0.5, 0.5])


def test_small_measures_count_like_large_ones():
    """(1, 3) * 1e-12 counts like (1, 3)."""
    tiny = estimate([1e-12, 3e-12], [0, 0], [0, 0], **BARS, loss_weight=1, gap_weight=0, sharpness=(2 * log(3),))
    close(tiny, [0.75, 0.25])  # raw (.75, .25)


def test_a_numeric_bar_above_the_losses_follows_the_printed_formula_and_warns():
    """Losses 1 3 less 8: -7 -5, sum -12: raw 5/12, 7/12, so the better cluster gets less. A = 6: ratio e."""
    with pytest.warns(RuntimeWarning, match=r"loss_bar is 8, above a measured value.* reverse the ranking"):
        mixture = estimate([1, 3], [0, 0], [0, 0], **BARS | {"loss_bar": 8}, loss_weight=1, gap_weight=0, sharpness=6)
    close(mixture, [1 / (1 + exp(1)), 1 / (1 + exp(-1))])


@pytest.mark.parametrize("name", ["loss_bar", "gap_bar", "distance_bar"])
def test_the_warning_names_the_bar(name):
    with pytest.warns(RuntimeWarning, match=f"{name} is 2.5"):
        estimate([1, 4], [1, 4], [1, 4], **BARS | {name: 2.5})


def test_a_bar_at_the_smallest_value_does_not_warn():
    estimate([8, 9], [0, 1], [0, 1], **BARS | {"loss_bar": 8})  # a warning would be an error here


def test_a_run_with_a_high_bar_shows_one_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for upload in range(20):
            estimate([1 + upload / 7, 3], [1, 2], [1, 2], **BARS | {"loss_bar": 8})
    assert len(caught) == 1


def test_losses_of_a_wrong_shape_are_refused():
    state, _ = pair()
    for wrong in (torch.ones(1), torch.ones(3), torch.ones(1, 2), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"losses of the upload has shape .*; expected .* \(2,\)"):
            with_losses(state, Upload(torch.tensor([2.0]), 0, losses=wrong), estimator_of(Settings()), forbidden)


# -- properties

number = st.floats(0, 1e6)
weights = st.sampled_from([(0.5, 0.25), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.9, 0.1), (1 / 3, 1 / 3)])
sharpness = st.lists(st.floats(0.01, 100), min_size=1, max_size=3).map(tuple)
bar = st.just("min") | st.integers(0, 50)


@st.composite
def columns(draw, values=number):
    num_clusters = draw(st.integers(1, 6))
    column = st.lists(values, min_size=num_clusters, max_size=num_clusters)
    return [draw(column) for _ in range(3)]


def quiet(measures, weights, sharpness, bars):
    """The estimate, without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return estimate(
            *measures,
            loss_weight=weights[0],
            gap_weight=weights[1],
            sharpness=sharpness,
            loss_bar=bars[0],
            gap_bar=bars[1],
            distance_bar=bars[2],
        )


@settings(deadline=None, derandomize=True)
@given(columns(), weights, sharpness, st.tuples(bar, bar, bar))
def test_a_mixture_is_shares_that_sum_to_one(measures, weights, sharpness, bars):
    mixture = quiet(measures, weights, sharpness, bars)
    assert mixture.shape == (len(measures[0]),)
    assert bool((mixture >= 0).all())
    assert mixture.sum().item() == pytest.approx(1, abs=1e-12)


@settings(deadline=None, derandomize=True)
@given(columns(st.floats(0, 1.7e308)), weights, st.tuples(bar, bar, bar))
def test_finite_measures_never_give_nan(measures, weights, bars):
    assert bool(torch.isfinite(quiet(measures, weights, (7.0,), bars)).all())


@settings(deadline=None, derandomize=True)
@given(columns(st.integers(0, 60)), weights, sharpness, st.tuples(bar, bar, bar), st.randoms())
def test_permuting_clusters_permutes_the_mixture(measures, weights, sharpness, bars, random):
    """With whole numbers, whose sums are exact in any order."""
    order = list(range(len(measures[0])))
    random.shuffle(order)
    shuffled = [[values[k] for k in order] for values in measures]
    mixture = quiet(measures, weights, sharpness, bars)
    torch.testing.assert_close(quiet(shuffled, weights, sharpness, bars), mixture[order], rtol=0, atol=1e-9)


@settings(deadline=None, derandomize=True)
@given(columns(st.integers(0, 60)), weights, sharpness)
def test_with_min_bars_a_cluster_that_is_worse_in_every_measure_never_ranks_higher(measures, weights, sharpness):
    mixture = quiet(measures, weights, sharpness, ("min", "min", "min"))
    pairs = list(itertools.permutations(range(len(mixture)), 2))
    better = [(i, k) for i, k in pairs if all(values[i] <= values[k] for values in measures)]
    assume(better)
    assert all(mixture[i] >= mixture[k] - 1e-12 for i, k in better)


# -- relative measures


def test_relative_measures_worked_by_hand():
    """Each measure divided by its cluster's mean, times the average mean: 2, 3 and 1."""
    means = torch.tensor([[1, 3], [4, 2], [1, 1]], dtype=torch.float64)
    found = relative(measures_of([2, 3], [2, 6], [5, 7]), means)
    assert torch.stack(found).tolist() == [[4, 2], [1.5, 9], [5, 7]]


def test_running_means_worked_by_hand():
    """They begin with the mean over clusters, here 3; then they are the mean of that and of all uploads."""
    means = torch.zeros(3, 2, dtype=torch.float64)
    for epoch, (value, expected) in enumerate([([2, 4], [2.5, 3.5]), ([4, 8], [3, 5]), ([7, 1], [4, 4])], start=1):
        means = means_after(means, measures_of(value, value, value), epoch)
        assert means.tolist() == [pytest.approx(expected)] * 3


@pytest.mark.parametrize("epoch", [RECENT - 1, RECENT, 100 * RECENT])
def test_running_means_follow_recent_uploads(epoch):
    means = means_after(torch.ones(3, 2, dtype=torch.float64), measures_of(*[[1, 2]] * 3), epoch)
    assert means.tolist() == [pytest.approx([1, 1 + 1 / RECENT])] * 3


@pytest.mark.parametrize("epoch", [1, 7, RECENT, 3 * RECENT])
def test_an_epoch_in_a_tensor_gives_the_same_bits(epoch):
    means, measures = torch.rand(3, 4).double(), Measures(*torch.rand(3, 4).double())
    expected = means_after(means, measures, epoch)
    assert bits(means_after(means, measures, torch.tensor(epoch))) == bits(expected)


@settings(deadline=None, derandomize=True)
@given(columns())
def test_before_the_first_upload_measures_stay_as_they_are(measures):
    plain = measures_of(*measures)
    assert bits(torch.stack(relative(plain, torch.zeros(3, len(measures[0]))))) == bits(torch.stack(plain))


@pytest.mark.parametrize("useless", [[-2.0, 1.0], [0.0, 1.0], [NAN, 1.0], [INF, 1.0], [5e-324, 1.0]])
def test_a_measure_stays_as_it_is_if_a_mean_is_no_divisor(useless):
    means = torch.tensor([useless, [1, 3], [3, 1]], dtype=torch.float64)
    found = relative(measures_of([-1, 4], [1, 3], [1, 3]), means)
    assert torch.stack(found).tolist() == [[-1, 4], [2, 2], [pytest.approx(2 / 3), 6]]


def test_negative_losses_are_remembered_and_compared_as_they_are():
    """A log-likelihood of -5 is better than -3, but divided by means of -5 and -3 both are 1."""
    measures, means = measures_of([-5, -3], [1, 1], [1, 1]), torch.zeros(3, 2, dtype=torch.float64)
    for epoch in range(1, 9):
        means = means_after(means, measures, epoch)
    assert means[0].tolist() == pytest.approx([-4 - 8 / 9, -4 + 8 / 9])
    assert relative(measures, means).losses.tolist() == [-5, -3]


def test_only_relative_measures_find_the_cluster_with_a_harder_proxy_set():
    """Losses are .5 on a client's own cluster and 1 on the other; ten times that on the hard proxy set."""
    clients = [measures_of(*[values] * 3) for values in ([0.5, 10.0], [1.0, 5.0])]
    plain, relative_, upload = (
        PrintedEstimator(EstimateSettings()),
        RelativeEstimator(EstimateSettings()),
        Upload(torch.zeros(1), 0),
    )
    memory = relative_.begin(2)
    for epoch in range(1, 41):
        _, memory = relative_(upload, clients[epoch % 2], memory, epoch)
    for cluster, measures in enumerate(clients):
        assert int(plain(upload, measures, memory, 41)[0].argmax()) == 0
        assert int(relative_(upload, measures, memory, 41)[0].argmax()) == cluster


@settings(deadline=None, derandomize=True)
@given(columns(), st.integers(1, 99))
def test_running_means_stay_finite(values, epoch):
    means = torch.zeros(3, len(values[0]), dtype=torch.float64)
    for turn in range(4):
        measures = measures_of(*(own[turn % len(own) :] + own[: turn % len(own)] for own in values))
        assert bool(torch.stack(relative(measures, means)).isfinite().all())
        means = means_after(means, measures, epoch + turn)
        assert bool((means >= 0).all() and means.isfinite().all())


# -- estimators


def test_the_settings_name_the_estimator():
    plain, compared = Settings(sharpness=3), Settings(measures="relative")
    assert estimator_of(plain) == PrintedEstimator(plain.estimate)
    assert estimator_of(compared) == RelativeEstimator(compared.estimate)


def test_what_estimators_begin_with():
    assert PrintedEstimator(EstimateSettings()).begin(2).shape == GIVEN.begin(2).shape == (0,)
    assert RelativeEstimator(EstimateSettings()).begin(2).tolist() == [[0, 0]] * 3
    assert {estimator.begin(2).dtype for estimator in (RelativeEstimator(EstimateSettings()), GIVEN)} == {torch.float64}


def test_only_the_relative_estimator_changes_the_memory():
    """It begins with zeros: the first estimate is the plain one."""
    upload, measures = (
        Upload(torch.zeros(1), 0, mixture=torch.tensor([0.25, 0.75])),
        measures_of([2, 4], [2, 4], [2, 4]),
    )
    for memory in (torch.empty(0, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64)):
        for estimator in (PrintedEstimator(EstimateSettings()), GIVEN):
            assert estimator(upload, measures, memory, 1)[1] is memory
    plain, _ = PrintedEstimator(EstimateSettings())(upload, measures, torch.empty(0), 1)
    relative = RelativeEstimator(EstimateSettings())
    mixture, means = relative(upload, measures, relative.begin(2), 1)
    assert bits(mixture) == bits(plain)
    assert means.tolist() == [[2.5, 3.5]] * 3


def test_given_takes_the_mixture_of_the_upload():
    mixture, empty = torch.tensor([0.25, 0.75]), torch.empty(0)
    assert GIVEN(Upload(torch.zeros(1), 0, mixture=mixture), UNMEASURED, empty, 1) == (mixture, empty)
    with pytest.raises(ValueError, match="the upload has no mixture; expected one, or an estimator that makes it"):
        GIVEN(Upload(torch.zeros(1), 0), UNMEASURED, empty, 1)
