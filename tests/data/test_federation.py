from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfl.data import (
    DataError,
    Datasets,
    Domains,
    Federation,
    LabelPermutations,
    PaperDrift,
    Rotations,
    Samples,
    Sizes,
    rotate,
)

SIZES = Sizes(low=20, high=40, test=30, pretraining=40, proxy=20)


@pytest.fixture(scope="module")
def base(make_dataset):
    return make_dataset()


@pytest.fixture(scope="module")
def federation(base):
    return Federation(Rotations("base", 4).build(lambda name: base), PaperDrift(), SIZES, seed=7)


@given(client=st.integers(0, 10_000), update=st.integers(0, 10_000))
@settings(max_examples=60)
def test_a_draw_is_what_it_says(federation, client, update):
    draw = federation.draw(client, update)
    assert SIZES.low <= len(draw.train) <= SIZES.high
    assert len(draw.test) == SIZES.test
    assert draw.true_mixture.sum() == pytest.approx(1)
    assert np.array_equal(np.bincount(draw.train.cluster, minlength=4), np.rint(draw.true_mixture * len(draw.train)))
    # The test set has the same mixture, as nearly as whole samples allow.
    assert np.abs(np.bincount(draw.test.cluster, minlength=4) - draw.true_mixture * SIZES.test).max() < 1
    for samples in (draw.train, draw.test):
        for k in range(4):
            index = samples.index[samples.cluster == k]
            assert len(set(index)) == len(index)  # no image twice
            assert index.size == 0 or index.max() < len(federation.splits[k].part(samples.split))


@given(st.permutations([(client, update) for client in range(4) for update in range(3)]))
@settings(max_examples=20)
def test_draws_do_not_depend_on_the_order_of_calls(federation, order):
    fresh = Federation(federation.clusters, federation.drift, federation.sizes, federation.seed)
    for client, update in order:
        one, other = fresh.draw(client, update), federation.draw(client, update)
        assert np.array_equal(one.train.index, other.train.index)
        assert np.array_equal(one.test.index, other.test.index)
        assert np.array_equal(one.train.cluster, other.train.cluster)


def test_seed_client_and_update_all_matter(federation):
    other = Federation(federation.clusters, federation.drift, federation.sizes, seed=8)
    draws = [federation.draw(0, 0), federation.draw(4, 0), federation.draw(0, 1), other.draw(0, 0)]
    assert len({tuple(draw.train.index) for draw in draws}) == 4


def test_fetch_gives_the_turned_base_images_in_the_order_of_the_samples(federation, base):
    cluster, index = np.array([3, 0, 1, 0, 2, 3]), np.array([5, 2, 9, 0, 1, 0])
    images, labels = federation.fetch(Samples("test", cluster, index))
    for at, (k, i) in enumerate(zip(cluster, index, strict=True)):
        place = federation.splits[k].test[i]
        assert torch.equal(images[at : at + 1], rotate(base.test_inputs[place : place + 1], 90 * int(k)))
        assert labels[at] == base.test_targets[place]


def test_a_sorted_draw_is_fetched_like_a_shuffled_one(federation):
    samples = federation.draw(1, 1).train
    shuffle = np.random.default_rng(0).permutation(len(samples))
    images, labels = federation.fetch(samples)
    mixed, mixed_labels = federation.fetch(Samples("train", samples.cluster[shuffle], samples.index[shuffle]))
    assert torch.equal(images[shuffle], mixed)
    assert torch.equal(labels[shuffle], mixed_labels)


def test_the_four_sets_share_no_image(federation):
    seen = [
        image.numpy().tobytes()
        for part in (federation.pretraining, federation.proxy, federation.test)
        for image in part(0)[0]
    ]
    everything = Samples("train", np.zeros(160, np.int64), np.arange(160))
    seen += [image.numpy().tobytes() for image in federation.fetch(everything)[0]]
    assert len(seen) == len(set(seen)) == 300
    # The same split in every cluster: a turned twin never crosses from training to testing.
    assert all(np.array_equal(split.test, federation.splits[0].test) for split in federation.splits)


def test_whole_sets_have_the_sizes_asked_for(federation):
    for part, size in ((federation.pretraining, 40), (federation.proxy, 20), (federation.test, 80)):
        images, labels = part(2)
        assert images.shape == (size, 1, 8, 8)
        assert images.dtype == torch.uint8
        assert labels.shape == (size,)
        assert labels.dtype == torch.int64


def test_labels_are_permuted_when_fetched(base):
    clusters = LabelPermutations("base", 2).build(lambda name: base)
    federation = Federation(clusters, PaperDrift(), SIZES)
    assert torch.equal(federation.proxy(1)[1], clusters[1].label_map[federation.proxy(0)[1]])


def test_a_small_cluster_is_drawn_with_replacement(make_dataset):
    few = make_dataset("few", train=10, test=10)
    federation = Federation(Datasets((few,)).build(lambda name: few), PaperDrift(), SIZES)
    draw = federation.draw(0, 0)
    assert len(draw.train) >= 20
    assert len(set(draw.train.index)) < len(draw.train)
    assert federation.notes


def test_what_was_noted_when_data_were_read_is_passed_on(make_dataset):
    datasets = [replace(make_dataset(), notes=notes) for notes in (("pooled",), (), ("pooled", "old"))]
    clusters = Domains(("0+1", "2")).build(lambda name: datasets[int(name)])
    assert Federation(clusters, PaperDrift(), SIZES).notes == ("pooled", "old")


def test_moving_keeps_draws_pixels_and_sharing(federation):
    moved = federation.to("cpu")
    draw = federation.draw(3, 3)
    assert torch.equal(moved.fetch(draw.train)[0], federation.fetch(draw.train)[0])
    assert moved.num_bytes == federation.num_bytes == 300 * 64
    assert len({id(cluster.dataset) for cluster in moved.clusters}) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_gives_the_same_bytes(federation):
    draw = federation.draw(3, 3)
    images, labels = federation.to("cuda").fetch(draw.train)
    assert torch.equal(images.cpu(), federation.fetch(draw.train)[0])
    assert torch.equal(labels.cpu(), federation.fetch(draw.train)[1])


def test_clusters_of_different_sizes_are_refused(make_dataset):
    two = make_dataset(), make_dataset(shape=(9, 9, 1))
    with pytest.raises(DataError, match=r"images of different sizes .* resize them to one"):
        Federation(Datasets(two).build(lambda name: two[0]), PaperDrift(), SIZES)
    with pytest.raises(DataError, match="at least one cluster"):
        Federation([], PaperDrift(), SIZES)


class Own:
    def __init__(self, counts, update=0):
        self.wrong, self.update = counts, update

    def counts(self, seed, client, update, size, num_clusters):
        return self.wrong(size) if update >= self.update else [size, 0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda size: [size, 0, 0, 1],
        lambda size: np.array([size, 0, 0]),
        lambda size: np.array([size + 1, -1, 0, 0]),
        lambda size: np.array([size / 4] * 4),
        lambda size: np.zeros((4, 1), int),
        lambda size: None,
    ],
    ids=["another sum", "too few", "negative", "not whole", "another shape", "nothing"],
)
def test_a_drift_of_ones_own_must_give_counts(base, wrong):
    clusters = Rotations("base", 4).build(lambda name: base)
    message = (
        r"Own\.counts gave .* for client 0, update {}; expected 4 whole numbers of at least 0 that sum to size, {}"
    )
    with pytest.raises(DataError, match=message.format(0, SIZES.high)):
        Federation(clusters, Own(wrong), SIZES)
    late = Federation(clusters, Own(wrong, update=1), SIZES)
    assert late.draw(0, 0).true_mixture.tolist() == [1, 0, 0, 0]
    with pytest.raises(DataError, match=message.format(1, r"\d+")):
        late.draw(0, 1)
