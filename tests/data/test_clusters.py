import numpy as np
import pytest
import torch

from cdfl.data import DataError, Datasets, Domains, LabelPermutations, Rotations, Shifts, rotate
from cdfl.data.transforms import reshape


@pytest.mark.parametrize(("num_clusters", "copies"), [(1, 1), (2, 1), (3, 3), (4, 1), (6, 3), (8, 2)])
def test_rotations_hold_few_copies_and_show_every_angle(make_dataset, num_clusters, copies):
    base = make_dataset(shape=(9, 9, 3))
    clusters = Rotations("base", num_clusters).build(lambda name: base)
    assert len({id(cluster.dataset) for cluster in clusters}) == copies
    index = torch.arange(5)
    for i, cluster in enumerate(clusters):
        images, labels = cluster.take("test", index)
        assert torch.equal(images, rotate(base.test_inputs[:5], 360 * i / num_clusters))
        assert torch.equal(labels, base.test_targets[:5])


def test_rotations_fit_images_before_they_turn_them(make_dataset):
    base = make_dataset(shape=(12, 10, 3))
    upright, turned = Rotations("base", 2, shape=(3, 8, 8)).build(lambda name: base)
    assert upright.dataset.input_shape == (3, 8, 8)
    assert upright.dataset is turned.dataset
    index = torch.arange(5)
    assert torch.equal(turned.take("test", index)[0], rotate(reshape(base.test_inputs[:5], (3, 8, 8)), 180))


def test_rotation_needs_squares(make_dataset):
    with pytest.raises(DataError, match="rotation needs square images, got"):
        Rotations("base", 4).build(lambda name: make_dataset(shape=(8, 9, 1)))


def test_domains_join_and_fit(make_dataset):
    sources = {
        "a": make_dataset(shape=(28, 28, 1)),
        "b": make_dataset(train=30, test=10, shape=(16, 16, 1)),
        "c": make_dataset(shape=(32, 32, 3)),
    }
    first, second = Domains(("a+b", "c"), shape=(3, 32, 32)).build(sources.__getitem__)
    assert first.dataset.input_shape == second.dataset.input_shape == (3, 32, 32)
    assert len(first.dataset.train_targets) == 230
    assert first.name == "a+b"
    assert torch.equal(second.dataset.test_inputs, sources["c"].test_inputs)
    assert len(Domains(("a", "a")).build(sources.__getitem__)) == 2


def test_domains_of_different_sizes_need_a_shape(make_dataset):
    sources = {"a": make_dataset(), "b": make_dataset(shape=(9, 9, 1))}
    with pytest.raises(DataError, match=r"a\+b joins images of different sizes .* give the recipe a shape"):
        Domains(("a+b",)).build(sources.__getitem__)


def test_label_permutations_change_labels_only(make_dataset):
    base = make_dataset()
    plain, permuted, _ = LabelPermutations("base", 3).build(lambda name: base)
    index = torch.arange(40)
    assert torch.equal(plain.take("train", index)[1], base.train_targets[:40])
    images, labels = permuted.take("train", index)
    assert torch.equal(images, base.train_inputs[:40])
    assert torch.equal(labels, permuted.label_map[base.train_targets[:40]])
    assert sorted(permuted.label_map.tolist()) == list(range(10))


def test_shifts_change_images_only(make_dataset):
    base = make_dataset()
    plain, dark, *_ = Shifts("base").build(lambda name: base)
    assert plain.dataset is base
    assert dark.dataset.train_inputs.float().mean() < 0.45 * base.train_inputs.float().mean()
    assert torch.equal(dark.dataset.train_targets, base.train_targets)


def test_a_users_own_datasets_are_clusters(make_dataset):
    mine = make_dataset("left"), make_dataset("right", seed=1)
    assert [cluster.name for cluster in Datasets(mine).build(lambda name: mine[0])] == ["left", "right"]


def test_the_sides_of_a_shape_may_be_numpys(make_dataset):
    clusters = Domains(("a",), (1, *np.array([6, 6]))).build(lambda name: make_dataset())
    assert clusters[0].dataset.input_shape == (1, 6, 6)


@pytest.mark.parametrize("shape", [(1, 0, 8), (1, 8, -8), (3, 8), (3.0, 8, 8)])
def test_a_shape_that_no_image_has_is_refused_before_any_is_read(shape):
    for make in (lambda: Rotations("x", 2, shape), lambda: Domains(("x",), shape)):
        with pytest.raises(ValueError, match=r"shape is \(.*\); expected channels, height and width, whole numbers"):
            make()


@pytest.mark.parametrize(
    "make", [lambda: Rotations("x", 0), lambda: Domains(()), lambda: Datasets(()), lambda: LabelPermutations("x", 0)]
)
def test_no_cluster_is_refused(make):
    with pytest.raises(ValueError, match="0 clusters; expected at least 1"):
        make()
