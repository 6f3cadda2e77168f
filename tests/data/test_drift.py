import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfl.data import DRIFTS, Dirichlet, Gradual, Newcomer, PaperDrift, Seasons, Static, Sudden
from cdfl.data.drift import apportion

kinds = st.sampled_from(sorted(DRIFTS))
seeds, clients, updates = st.integers(0, 2**32), st.integers(0, 10_000), st.integers(0, 200)
sizes, clusters = st.integers(1, 2000), st.integers(1, 7)


@given(kinds, seeds, clients, updates, sizes, clusters)
def test_counts_are_whole_sum_to_the_size_and_are_the_same_again(kind, seed, client, update, size, num_clusters):
    drift = DRIFTS[kind]()
    counts = drift.counts(seed, client, update, size, num_clusters)
    assert counts.shape == (num_clusters,)
    assert counts.dtype == np.int64
    assert counts.min() >= 0
    assert counts.sum() == size
    assert np.array_equal(counts, drift.counts(seed, client, update, size, num_clusters))


@given(st.sampled_from(["even", "uneven"]), seeds, clients, updates, st.integers(500, 2000), st.integers(2, 6))
def test_the_papers_main_share_is_40_to_90_percent(rest, seed, client, update, size, num_clusters):
    counts = PaperDrift(rest=rest).counts(seed, client, update, size, num_clusters)
    assert 0.4 * size <= counts[client % num_clusters] <= 0.9 * size


def test_the_papers_mixture_is_uniform_in_its_range_and_even_in_the_rest():
    mixtures = np.stack([PaperDrift().counts(0, 2, update, 1000, 4) for update in range(2000)]) / 1000
    assert mixtures[:, 2].min() < 0.41
    assert mixtures[:, 2].max() > 0.89
    assert mixtures.mean(0) == pytest.approx([0.35 / 3, 0.35 / 3, 0.65, 0.35 / 3], abs=0.01)


def test_an_uneven_rest_varies_more_than_an_even_one():
    even, uneven = (
        np.stack([PaperDrift(0.4, 0.4, rest).counts(0, 0, update, 1000, 4)[1] for update in range(300)]).std()
        for rest in ("even", "uneven")
    )
    assert uneven > 5 * even


def test_static_never_changes():
    mixtures = {tuple(Static().counts(0, 5, update, 1000, 4)) for update in range(20)}
    assert len(mixtures) == 1


def test_sudden_keeps_its_main_cluster_and_then_jumps_to_another():
    mains = [Sudden(every=3).main(0, 1, update, 4) for update in range(30)]
    assert mains[:3] == [1, 1, 1]
    assert all(mains[i] == mains[i // 3 * 3] for i in range(30))
    assert all(mains[i] != mains[i + 3] for i in range(0, 27, 3))


def test_gradual_moves_a_little_at_a_time_from_one_cluster_to_the_next():
    shares = np.stack([Gradual(period=10).counts(0, 1, update, 1000, 4) for update in range(31)]) / 1000
    assert np.abs(np.diff(shares, axis=0)).max() < 0.1
    assert [int(shares[update].argmax()) for update in (0, 10, 20, 30)] == [1, 2, 3, 0]


def test_seasons_come_back():
    mains = [Seasons(length=2).main(0, 0, update, 3) for update in range(12)]
    assert mains == [0, 0, 1, 1, 2, 2] * 2


def test_the_newcomer_is_absent_and_then_there():
    drift = Newcomer(cluster=-1, at=4)
    early = np.stack([drift.counts(0, client, 3, 1000, 4) for client in range(60)])
    late = np.stack([drift.counts(0, client, 4, 1000, 4) for client in range(60)])
    assert early[:, 3].sum() == 0
    assert late[:, 3].min() > 0
    assert [int(row.argmax()) for row in early[[0, 1, 2, 3, 7, 11]]] == [0, 1, 2, 0, 1, 2]  # by number, no favourite
    assert len({tuple(row) for row in early[::4]}) == 15  # each client has its own mixture


def test_dirichlet_concentration_decides_how_pure_clients_are():
    pure, mixed = (
        np.mean([Dirichlet(c).counts(0, client, 0, 1000, 4).max() for client in range(100)]) for c in (0.001, 1000)
    )
    assert pure > 990
    assert mixed < 300


@given(st.integers(0, 5000), st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda s: sum(s) > 0.01))
def test_apportion_is_never_a_whole_sample_off(size, shares):
    counts = apportion(size, np.array(shares))
    assert counts.sum() == size
    assert np.abs(counts - size * np.array(shares) / sum(shares)).max() < 1 + 1e-6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PaperDrift(0.9, 0.4), "a main share from 0.9 to 0.4; expected 0 <= low <= high <= 1"),
        (lambda: PaperDrift(rest="odd"), "rest is 'odd'; expected"),
        (lambda: Sudden(every=0), "every is 0; expected at least 1 update"),
        (lambda: Dirichlet(0), "concentration is 0; expected a positive number"),
        (lambda: Newcomer(cluster=9).counts(0, 0, 0, 10, 4), "the newcomer is cluster 9, but there are only 4"),
        (lambda: PaperDrift().counts(0, -1, 0, 10, 4), "must be 0 or larger"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
