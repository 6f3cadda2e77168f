import itertools
import warnings
from math import exp, log

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cdfl.core import (
    Measures,
    Settings,
    Upload,
    estimate_mixture,
    initial_state,
    measure,
    mixture_of,
    relative,
    usual_after,
)
from cdfl.core.estimate import RECENT

from .toy import Proxy, bits, forbidden, pair

NAN, INF = float("nan"), float("inf")
BARS = {"loss_bar": 0.0, "gap_bar": 0.0, "distance_bar": 0.0}


def estimate(losses, loss_gaps, distances, **changes):
    measures = (torch.tensor(values, dtype=torch.float64) for values in (losses, loss_gaps, distances))
    return estimate_mixture(*measures, Settings(**changes))


def close(mixture, expected):
    assert mixture.tolist() == pytest.approx(expected, abs=1e-12)


# -- line 3: what the server measures


def test_measures_worked_by_hand():
    state, proxy = pair()  # w = (0, 10), centres (1, 9), F(w_k; D_k) = (1, 1)
    measures = measure(state, Upload(torch.tensor([2.0]), 0), proxy)
    assert measures.losses.tolist() == [1, 49]  # (2 - 1)^2, (2 - 9)^2
    assert measures.loss_gaps.tolist() == [0, 48]  # |1 - 1|, |1 - 49|
    assert measures.distances.tolist() == [2, 8]  # |2 - 0|, |2 - 10|
    assert {values.dtype for values in measures} == {torch.float64}
    assert proxy.calls == [[0, 1]]


def test_losses_computed_ahead_of_time_are_used():
    state, _ = pair()
    measures = measure(state, Upload(torch.tensor([2.0]), 0, losses=torch.tensor([3.0, 0.5])), forbidden)
    assert measures.losses.tolist() == [3, 0.5]
    assert measures.loss_gaps.tolist() == [2, 0.5]


def test_distances_ignore_buffers():
    """Vectors of two parameters and one running variance: only the parameters count, 3-4-5 triangles."""
    models = torch.tensor([[0.0, 0.0, 1.0], [6.0, 0.0, 900.0]])
    proxy = Proxy(models)
    upload = Upload(torch.tensor([3.0, 4.0, 70.0]), 0)
    assert measure(initial_state(models, proxy, num_parameters=2), upload, proxy).distances.tolist() == [5, 5]
    assert measure(initial_state(models, proxy), upload, proxy).distances[0].item() > 69


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
    """Two clusters, min bars: each measure votes wholly for one; the votes are (c1 + c2, rest)."""
    mixture = estimate([0, 1], [0, 1], [1, 0], loss_weight=0.6, gap_weight=0.3, sharpness=(5,))
    close(mixture, [1 / (1 + exp(-5 * (0.9 - 0.1))), 1 / (1 + exp(5 * (0.9 - 0.1)))])


def test_softmax_is_repeated_once_for_each_factor():
    """K = 2, raw (1, 0): A = ln 3 gives (.75, .25); then A = 4 ln 3 gives a ratio of 3^(4 * .5) = 9."""
    once = estimate([0, 1], [0, 1], [0, 1], sharpness=(log(3),))
    close(once, [0.75, 0.25])
    twice = estimate([0, 1], [0, 1], [0, 1], sharpness=(log(3), 4 * log(3)))
    close(twice, [0.9, 0.1])


# -- where the formula has no value


def test_one_cluster_is_everything():
    assert estimate([5.0], [1.0], [0.0]).tolist() == [1.0]
    assert estimate([5.0], [1.0], [0.0], **BARS | {"loss_bar": 8}).tolist() == [1.0]


@pytest.mark.parametrize("num_clusters", range(2, 9))
@pytest.mark.parametrize("main_share", [0.5, 0.65, 0.9])
def test_without_a_sharpness_the_nearest_of_equals_has_the_main_share(num_clusters, main_share):
    values = [0.5] + [2.0] * (num_clusters - 1)
    mixture = estimate(values, values, values, main_share=main_share)
    close(mixture, [main_share] + [(1 - main_share) / (num_clusters - 1)] * (num_clusters - 1))


def test_a_main_share_below_the_mean_never_turns_the_ranking_round():
    close(estimate([0, 1, 1], [0, 1, 1], [0, 1, 1], main_share=0.1), [1 / 3] * 3)


@pytest.mark.parametrize("num_clusters", [2, 3, 6])
def test_equal_measures_under_min_say_nothing(num_clusters):
    same = [0.7] * num_clusters
    close(estimate(same, same, same), [1 / num_clusters] * num_clusters)


def test_a_measure_that_says_nothing_leaves_the_word_to_the_others():
    """Losses equal, the rest wholly for cluster 0: raw = .5 * (.5, .5) + .5 * (1, 0) = (.75, .25)."""
    close(estimate([4, 4], [0, 1], [0, 1], sharpness=(2 * log(3),)), [0.75, 0.25])


def test_zeros_under_a_numeric_bar_say_nothing():
    close(estimate([8, 8, 8], [0, 0, 0], [0, 0, 0], **BARS | {"loss_bar": 8}), [1 / 3] * 3)


@pytest.mark.parametrize("off", [0.0, 1e-9, -1e-9])
def test_terms_that_cancel_say_nothing_instead_of_exploding(off):
    """Losses 7 and 9 less a bar of 8 sum to zero: 1/0. Nearly: shares of a thousand million."""
    with pytest.warns(RuntimeWarning, match="loss_bar is 8"):
        mixture = estimate([7, 9 + off], [1, 1], [1, 1], **BARS | {"loss_bar": 8})
    close(mixture, [0.5, 0.5])


def test_a_small_sum_that_is_no_rounding_is_used():
    """Small losses are not small sums: (1, 3) * 1e-12 counts like (1, 3)."""
    tiny = estimate([1e-12, 3e-12], [0, 0], [0, 0], **BARS, loss_weight=1, gap_weight=0, sharpness=(2 * log(3),))
    close(tiny, [0.75, 0.25])  # raw (.75, .25)


def test_a_numeric_bar_above_the_losses_is_the_printed_formula_and_a_warning():
    """Losses 1 3 less 8: -7 -5, sum -12: raw 5/12, 7/12, so the better cluster gets less. A = 6: ratio e."""
    with pytest.warns(RuntimeWarning, match=r"loss_bar is 8, above a value .* upside down; 'min' never does"):
        mixture = estimate([1, 3], [0, 0], [0, 0], **BARS | {"loss_bar": 8}, loss_weight=1, gap_weight=0, sharpness=6)
    close(mixture, [1 / (1 + exp(1)), 1 / (1 + exp(-1))])


@pytest.mark.parametrize("name", ["loss_bar", "gap_bar", "distance_bar"])
def test_the_warning_names_the_bar(name):
    with pytest.warns(RuntimeWarning, match=f"{name} is 2.5"):
        estimate([1, 4], [1, 4], [1, 4], **BARS | {name: 2.5})


def test_a_bar_that_is_not_above_does_not_warn():
    estimate([8, 9], [0, 1], [0, 1], **BARS | {"loss_bar": 8})  # a warning would be an error here


def test_a_whole_run_under_a_high_bar_shows_one_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for upload in range(20):
            estimate([1 + upload / 7, 3], [1, 2], [1, 2], **BARS | {"loss_bar": 8})
    assert len(caught) == 1


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_number_that_is_none_is_refused(bad, which):
    measures = [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
    measures[which] = [1.0, bad]
    name = ("losses", "loss_gaps", "distances")[which]
    with pytest.raises(ValueError, match=rf"{name}: \[1.0, {bad}\]; expected finite numbers: .* diverged"):
        estimate(*measures)


@pytest.mark.parametrize(
    ("measures", "complaint"),
    [
        (([1.0, 2.0], [1.0], [1.0, 2.0]), r"loss_gaps has shape \(1,\); expected .* \(2,\)"),
        (([1.0, 2.0], [1.0, 2.0], [1.0, 2.0, 3.0]), r"distances has shape \(3,\); expected .* \(2,\)"),
        (([[1.0, 2.0]], [1.0, 2.0], [1.0, 2.0]), r"losses has shape \(1, 2\); expected .* \(2,\)"),
        ((1.0, [1.0], [1.0]), r"losses has shape \(\); expected .* \(1,\)"),
        (([], [], []), r"losses has shape \(0,\); expected .* \(1,\)"),
    ],
)
def test_wrong_shapes_are_refused(measures, complaint):
    with pytest.raises(ValueError, match=complaint):
        estimate(*measures)


def test_losses_sent_along_in_the_wrong_shape_are_refused():
    state, _ = pair()
    for wrong in (torch.ones(1), torch.ones(3), torch.ones(1, 2), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"losses of the upload has shape .*; expected .* \(2,\)"):
            measure(state, Upload(torch.tensor([2.0]), 0, losses=wrong), forbidden)


# -- properties

number = st.floats(0, 1e6)
weights = st.sampled_from([(0.5, 0.25), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.9, 0.1), (1 / 3, 1 / 3)])
sharpness = st.lists(st.floats(0.01, 100), min_size=1, max_size=3).map(tuple)
bar = st.just("min") | st.integers(0, 50)


@st.composite
def measured(draw, values=number):
    num_clusters = draw(st.integers(1, 6))
    column = st.lists(values, min_size=num_clusters, max_size=num_clusters)
    return [draw(column) for _ in range(3)]


def quiet(measures, weights, sharpness, bars):
    """The estimate, whatever it warns of."""
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
@given(measured(), weights, sharpness, st.tuples(bar, bar, bar))
def test_a_mixture_is_shares_that_sum_to_one(measures, weights, sharpness, bars):
    mixture = quiet(measures, weights, sharpness, bars)
    assert mixture.shape == (len(measures[0]),)
    assert bool((mixture >= 0).all())
    assert mixture.sum().item() == pytest.approx(1, abs=1e-12)


@settings(deadline=None, derandomize=True)
@given(measured(st.floats(0, 1.7e308)), weights, st.tuples(bar, bar, bar))
def test_no_finite_measures_make_a_nan(measures, weights, bars):
    assert bool(torch.isfinite(quiet(measures, weights, (7.0,), bars)).all())


@settings(deadline=None, derandomize=True)
@given(measured(st.integers(0, 60)), weights, sharpness, st.tuples(bar, bar, bar), st.randoms())
def test_permuting_clusters_permutes_the_mixture(measures, weights, sharpness, bars, random):
    """Whole numbers, whose sums are exact in any order."""
    order = list(range(len(measures[0])))
    random.shuffle(order)
    shuffled = [[values[k] for k in order] for values in measures]
    mixture = quiet(measures, weights, sharpness, bars)
    torch.testing.assert_close(quiet(shuffled, weights, sharpness, bars), mixture[order], rtol=0, atol=1e-9)


@settings(deadline=None, derandomize=True)
@given(measured(st.integers(0, 60)), weights, sharpness)
def test_min_bars_never_rank_a_cluster_that_is_worse_in_everything_higher(measures, weights, sharpness):
    mixture = quiet(measures, weights, sharpness, ("min", "min", "min"))
    pairs = list(itertools.permutations(range(len(mixture)), 2))
    better = [(i, k) for i, k in pairs if all(values[i] <= values[k] for values in measures)]
    assume(better)
    assert all(mixture[i] >= mixture[k] - 1e-12 for i, k in better)


# -- relative measures


def measures_of(*rows):
    return Measures(*torch.tensor(rows, dtype=torch.float64))


def test_relative_measures_worked_by_hand():
    """Each measure over the usual of its cluster, times the mean of the usual: 2, 3 and 1."""
    usual = torch.tensor([[1, 3], [4, 2], [1, 1]], dtype=torch.float64)
    found = relative(measures_of([2, 3], [2, 6], [5, 7]), usual)
    assert torch.stack(found).tolist() == [[4, 2], [1.5, 9], [5, 7]]


def test_what_is_usual_worked_by_hand():
    """It begins with the mean over clusters, here 3; then the mean of that and of all that came."""
    usual = torch.zeros(3, 2, dtype=torch.float64)
    for epoch, (value, expected) in enumerate([([2, 4], [2.5, 3.5]), ([4, 8], [3, 5]), ([7, 1], [4, 4])], start=1):
        usual = usual_after(usual, measures_of(value, value, value), epoch)
        assert usual.tolist() == [pytest.approx(expected)] * 3


@pytest.mark.parametrize("epoch", [RECENT - 1, RECENT, 100 * RECENT])
def test_what_is_usual_follows_recent_uploads(epoch):
    usual = usual_after(torch.ones(3, 2, dtype=torch.float64), measures_of(*[[1, 2]] * 3), epoch)
    assert usual.tolist() == [pytest.approx([1, 1 + 1 / RECENT])] * 3


@pytest.mark.parametrize("epoch", [1, 7, RECENT, 3 * RECENT])
def test_an_epoch_that_only_the_device_knows_gives_the_same_bits(epoch):
    usual, measures = torch.rand(3, 4).double(), Measures(*torch.rand(3, 4).double())
    expected = usual_after(usual, measures, epoch)
    assert bits(usual_after(usual, measures, torch.tensor(epoch))) == bits(expected)


@settings(deadline=None, derandomize=True)
@given(measured())
def test_where_nothing_is_usual_measures_stay_as_they_are(measures):
    plain = measures_of(*measures)
    assert bits(torch.stack(relative(plain, torch.zeros(3, len(measures[0]))))) == bits(torch.stack(plain))


@pytest.mark.parametrize("useless", [[-2.0, 1.0], [0.0, 1.0], [NAN, 1.0], [INF, 1.0], [5e-324, 1.0]])
def test_a_measure_with_a_usual_value_that_cannot_be_divided_by_stays_plain(useless):
    usual = torch.tensor([useless, [1, 3], [3, 1]], dtype=torch.float64)
    found = relative(measures_of([-1, 4], [1, 3], [1, 3]), usual)
    assert torch.stack(found).tolist() == [[-1, 4], [2, 2], [pytest.approx(2 / 3), 6]]


def test_negative_losses_are_remembered_and_compared_as_they_are():
    """Log-likelihoods: -5 is better than -3, and would be worse as a part of the usual -5 and -3."""
    measures, usual = measures_of([-5, -3], [1, 1], [1, 1]), torch.zeros(3, 2, dtype=torch.float64)
    for epoch in range(1, 9):
        usual = usual_after(usual, measures, epoch)
    assert usual[0].tolist() == pytest.approx([-4 - 8 / 9, -4 + 8 / 9])
    assert relative(measures, usual).losses.tolist() == [-5, -3]


def test_clusters_that_are_unequally_hard_are_told_apart_by_relative_measures_alone():
    """At home a loss of .5, elsewhere 1; on the hard proxy set ten times that: plain, all are at home on the other."""
    clients = [[0.5, 10.0], [1.0, 5.0]]
    usual = torch.zeros(3, 2, dtype=torch.float64)
    for epoch in range(1, 41):
        measures = measures_of(*[clients[epoch % 2]] * 3)
        usual = usual_after(usual, measures, epoch)
    for home, values in enumerate(clients):
        measures = measures_of(values, values, values)
        assert int(mixture_of(measures, Settings()).argmax()) == 0
        assert int(mixture_of(relative(measures, usual), Settings()).argmax()) == home


@settings(deadline=None, derandomize=True)
@given(measured(), st.integers(1, 99))
def test_no_upload_makes_anything_usual_that_is_no_number(values, epoch):
    usual = torch.zeros(3, len(values[0]), dtype=torch.float64)
    for turn in range(4):
        measures = measures_of(*(own[turn % len(own) :] + own[: turn % len(own)] for own in values))
        assert bool(torch.stack(relative(measures, usual)).isfinite().all())
        usual = usual_after(usual, measures, epoch + turn)
        assert bool((usual >= 0).all() and usual.isfinite().all())
