import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfl.core import RateSettings, personalize, reply_weights, staleness_factor, update_clusters, update_rates

from .toy import AS_PRINTED, bits


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def rates_of(mixture, epoch=1, base_epoch=0, cluster_epochs=None, **changes):
    epochs = torch.tensor(cluster_epochs if cluster_epochs is not None else [0] * len(mixture))
    rates, epochs = update_rates(tensor(*mixture), epoch, base_epoch, epochs, AS_PRINTED.replace(**changes).rates)
    return pytest.approx(rates.tolist(), abs=1e-12), epochs.tolist()


# -- UpdateRatioCompute, worked by hand


def test_shares_are_divided_by_the_largest_and_scaled_by_the_base_rate():
    rates, epochs = rates_of([0.5, 0.3, 0.2], epoch=7, base_epoch=6, rate_floor=0.0, base_rate=0.1)
    assert rates == [0.1, 0.06, 0.04]  # .1 * (.5, .3, .2) / .5
    assert epochs == [7, 7, 7]


def test_the_mean_floor_is_one_over_k():
    rates, epochs = rates_of([0.5, 0.35, 0.15], epoch=7, base_epoch=6, cluster_epochs=[3, 4, 5], base_rate=0.1)
    assert rates == [0.1, 0.07, 0]  # 1/3 <= .35, .15 < 1/3
    assert epochs == [7, 7, 5]


def test_a_numeric_floor():
    assert rates_of([0.5, 0.3, 0.2], rate_floor=0.3, base_rate=1) == ([1, 0.6, 0], [1, 1, 0])  # at the floor is enough
    assert rates_of([0.5, 0.3, 0.2], rate_floor=0.4, base_rate=1) == ([1, 0, 0], [1, 0, 0])
    assert rates_of([0.5, 0.3, 0.2], rate_floor=0.6, base_rate=1) == ([0, 0, 0], [0, 0, 0])  # above all: none moves


@pytest.mark.parametrize("num_clusters", range(1, 50))
def test_equal_shares_are_all_at_the_mean_floor(num_clusters):
    """1/K and the mean of K times 1/K may differ in the last bit."""
    rates, _ = rates_of([1 / num_clusters] * num_clusters, base_rate=0.25)
    assert rates == [0.25] * num_clusters


def test_one_cluster_moves_by_the_base_rate():
    assert rates_of([1.0], epoch=9, base_epoch=8, base_rate=0.3) == ([0.3], [9])


def test_the_paper_s_hinge_jumps():
    ages = torch.tensor([0, 4, 5, 6, 80])
    factor = staleness_factor(ages, AS_PRINTED.replace(staleness_slope=10, staleness_grace=5).rates)
    assert factor.tolist() == pytest.approx([1, 1, 1 / 51, 1 / 61, 1 / 801])


def test_the_continuous_hinge_does_not_jump():
    ages = torch.tensor([0, 4, 5, 6, 80])
    settings = RateSettings(staleness_slope=10, staleness_grace=5, staleness_hinge="continuous")
    assert staleness_factor(ages, settings).tolist() == pytest.approx([1, 1, 1, 1 / 11, 1 / 751])


def test_staleness_damps_the_rate():
    stale = {"epoch": 9, "base_epoch": 3, "staleness_slope": 0.5, "staleness_grace": 5, "base_rate": 0.8}
    assert rates_of([0.6, 0.4], **stale)[0] == [0.2, 0]  # .8 / (.5 * 6 + 1)
    assert rates_of([0.5, 0.5], **stale, staleness_hinge="continuous")[0] == [0.8 / 1.5] * 2  # .5 * (6 - 5) + 1


def test_cluster_epochs_set_before_and_after_the_staleness_test():
    """t = 10, tau = 2, e = (9, 4), a = 1, b = 5, beta_0 = .9, both clusters move.

    Set before the test, e - tau = t - tau = 8 for both: .9 / 9. Set after it: 9 - 2 = 7, .9 / 8; 4 - 2 < 5, .9.
    """
    case = {"epoch": 10, "base_epoch": 2, "cluster_epochs": [9, 4], "base_rate": 0.9, "staleness_slope": 1}
    assert rates_of([0.5, 0.5], **case) == ([0.1, 0.1], [10, 10])
    assert rates_of([0.5, 0.5], **case, cluster_epochs_set="after") == ([0.1125, 0.9], [10, 10])


def test_an_upload_newer_than_the_last_move_of_a_cluster_is_fresh():
    """With epochs set after the test: e - tau = 1 - 6 is below any b."""
    case = {"epoch": 30, "base_epoch": 6, "cluster_epochs": [1], "staleness_slope": 9, "staleness_grace": 0}
    assert rates_of([1.0], **case, base_rate=0.5, cluster_epochs_set="after") == ([0.5], [30])


# -- moving clusters and mixing replies


def test_clusters_move_by_hand():
    models = torch.tensor([[0.0, 4.0], [8.0, 8.0], [1.0, 2.0]])
    moved = update_clusters(models, torch.tensor([4.0, 0.0]), tensor(0.25, 0.5, 1.0))
    assert moved.tolist() == [[1, 3], [6, 4], [4, 0]]
    assert models.tolist() == [[0, 4], [8, 8], [1, 2]]


def test_clusters_move_along_a_change_by_hand():
    models = torch.tensor([[0.0, 4.0], [8.0, 8.0], [-0.0, 2.0]])
    moved = update_clusters(models, torch.tensor([4.0, 0.0]), tensor(0.25, 0.5, 0), torch.tensor([2.0, 4.0]))
    assert moved.tolist() == [[0.5, 3], [9, 6], [0, 2]]  # by a quarter and by half of (2, -4)
    assert torch.signbit(moved[2, 0])  # rate 0 keeps every bit


def test_statistics_always_move_towards_the_upload():
    """A variance of 1, and a client that began at 4 and found 1: along the change, it would become negative."""
    models = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    moved = update_clusters(models, torch.tensor([3.0, 1.0]), tensor(0.5, 0), torch.tensor([2.0, 4.0]), 1)
    assert moved.tolist() == [[1.5, 1.0], [2.0, 1.0]]
    moved = update_clusters(models, torch.tensor([3.0, 0.0]), tensor(0.5, 0.25), torch.tensor([2.0, 4.0]), 1)
    assert moved.tolist() == [[1.5, 0.5], [2.25, 0.75]]


@pytest.mark.parametrize("uploaded", [torch.float16, torch.float64])
def test_clusters_keep_their_dtype(uploaded):
    moved = update_clusters(torch.zeros(2, 1), torch.ones(1, dtype=uploaded), tensor(0.5, 0))
    assert moved.dtype == torch.float32
    assert moved.tolist() == [[0.5], [0]]


def test_a_reply_mixes_all_clusters_or_those_at_the_floor():
    """Mixture (.5, .375, .125), floor 1/3, models (0, 8, 16): 0 + 3 + 2 = 5; or (4, 3)/7 of (0, 8) = 24/7."""
    models, mixture = torch.tensor([[0.0], [8.0], [16.0]]), tensor(0.5, 0.375, 0.125)
    everything = reply_weights(mixture, RateSettings())
    assert personalize(models, everything).item() == 5
    moved = reply_weights(mixture, AS_PRINTED.replace(reply_clusters="moved").rates)
    assert moved.tolist() == pytest.approx([4 / 7, 3 / 7, 0])
    assert personalize(models, moved).item() == pytest.approx(24 / 7)


def test_a_reply_mixes_all_clusters_if_the_floor_is_above_every_share():
    weights = reply_weights(tensor(0.6, 0.4), RateSettings(reply_clusters="moved", rate_floor=0.9))
    assert weights.tolist() == [0.6, 0.4]


# -- properties


@st.composite
def mixtures(draw):
    parts = draw(st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda parts: sum(parts) > 1e-3))
    return [part / sum(parts) for part in parts]


hinges = st.sampled_from(["paper", "continuous"])
orders = st.sampled_from(["before", "after"])


@settings(deadline=None, derandomize=True)
@given(
    mixtures(), hinges, orders, st.integers(0, 40), st.integers(0, 40), st.floats(0, 20), st.floats(0, 20), st.data()
)
def test_more_staleness_never_means_a_larger_rate(mixture, hinge, order, one, other, slope, grace, data):
    epochs = data.draw(st.lists(st.integers(0, 40), min_size=len(mixture), max_size=len(mixture)))
    settings = RateSettings(
        staleness_slope=slope, staleness_grace=grace, staleness_hinge=hinge, cluster_epochs_set=order
    )
    older, newer = sorted((one, other))
    stale, _ = update_rates(tensor(*mixture), 41, older, torch.tensor(epochs), settings)
    fresh, _ = update_rates(tensor(*mixture), 41, newer, torch.tensor(epochs), settings)
    assert bool((stale <= fresh).all())


@settings(deadline=None, derandomize=True)
@given(mixtures(), st.floats(0, 1), st.just("mean") | st.floats(0, 1), st.integers(0, 9), st.floats(0, 20))
def test_rates_lie_between_zero_and_the_base_rate(mixture, base_rate, floor, base_epoch, slope):
    settings = RateSettings(base_rate=base_rate, rate_floor=floor, staleness_slope=slope)
    rates, _ = update_rates(tensor(*mixture), 10, base_epoch, torch.zeros(len(mixture), dtype=torch.int64), settings)
    assert bool((rates >= 0).all())
    assert bool((rates <= base_rate).all())


entries = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3)


@settings(deadline=None, derandomize=True)
@given(entries, entries, entries)
def test_rate_zero_keeps_every_bit(first, second, upload):
    models = torch.tensor([first, second, [-0.0, 0.0, 1e-45]])
    moved = update_clusters(models, torch.tensor(upload), tensor(0.0, 0.5, 0.0))
    assert bits(moved[0]) == bits(models[0])
    assert bits(moved[2]) == bits(models[2])  # -0.0 stays -0.0
    assert bits(models[2, :1]) != bits(models[2, 1:2])
    assert moved[1].tolist() == pytest.approx([(a + b) / 2 for a, b in zip(second, upload, strict=True)], rel=1e-5)


@settings(deadline=None, derandomize=True)
@given(mixtures())
def test_a_reply_lies_between_the_clusters(mixture):
    models = torch.arange(float(len(mixture)))[:, None]
    for which in ("all", "moved"):
        weights = reply_weights(tensor(*mixture), RateSettings(reply_clusters=which))
        assert weights.sum().item() == pytest.approx(1)
        assert -1e-6 <= personalize(models, weights).item() <= len(mixture) - 1 + 1e-5
