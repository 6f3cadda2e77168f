import numpy as np
import pytest
import torch
from PIL import Image

from cdfl.data import DataError, Dataset, Datasets, Domains, Federation, PaperDrift, Sizes, load_source

SIZES = Sizes(low=2, high=4, test=2, pretraining=1, proxy=1)
SHADES = {"bike": 10, "car": 100, "dog": 200, "emu": 250}


def folder(path, classes):
    """Class folders whose images show by their shade which class they are."""
    for name in classes:
        (path / name).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (4, 4), (SHADES[name],) * 3).save(path / name / f"{i}.png")
    return str(path)


def in_memory(name, num_classes, class_names=()):
    half = np.zeros((num_classes, 4, 4, 3), np.uint8), np.arange(num_classes)
    return Dataset.from_arrays(name, half, half, num_classes, class_names)


def test_a_class_is_the_same_in_all_sources(tmp_path):
    first = folder(tmp_path / "s1", ["bike", "car", "dog"])
    second = folder(tmp_path / "s2", ["car", "dog", "emu"])
    third = folder(tmp_path / "s3", ["dog"])
    clusters = Domains((first, f"{second}+{third}")).build(load_source)
    number_of = {shade: number for number, shade in enumerate(SHADES.values())}
    for cluster in clusters:
        for half in ("train", "test"):
            images, labels = cluster.dataset.half(half)
            assert [number_of[shade] for shade in images[:, 0, 0, 0].tolist()] == labels.tolist()
    assert [len(cluster.dataset.train_targets) for cluster in clusters] == [12, 16]
    federation = Federation(clusters, PaperDrift(), SIZES)
    assert federation.num_classes == 4
    assert not any("class names" in note for note in federation.notes)


def test_names_in_an_order_of_their_own_are_kept_where_all_agree():
    datasets = tuple(in_memory(name, 2, ("yes", "no")) for name in "ab")
    for cluster, dataset in zip(Datasets(datasets).build(load_source), datasets, strict=True):
        assert torch.equal(cluster.dataset.train_targets, dataset.train_targets)
    cluster, _ = Datasets((datasets[0], in_memory("c", 2, ("maybe", "no")))).build(load_source)
    assert cluster.dataset.train_targets.tolist() == [2, 1]  # of maybe, no, yes


@pytest.mark.parametrize(
    "names", [("eight", "five", "four"), ("0", "1", "two"), ("3", "7"), tuple(sorted(str(i) for i in range(12)))]
)
def test_a_number_is_never_taken_for_a_name_that_may_be_another(names):
    sources = in_memory("named", len(names), names), in_memory("numbered", len(names))
    with pytest.raises(
        DataError, match=r"cannot be matched; give numbered class_names \(in an \.npz file an array of words"
    ):
        Datasets(sources).build(load_source)


def test_a_source_without_names_goes_with_names_that_are_its_numbers():
    named = in_memory("named", 10, tuple("0123456789"))
    clusters = Datasets((named, in_memory("numbered", 10))).build(load_source)
    assert [cluster.dataset.train_targets.tolist() for cluster in clusters] == [list(range(10))] * 2
    with pytest.raises(DataError, match=r"numbered has 3 numbered classes and other sources have 10 named ones \(0, 1"):
        Datasets((named, in_memory("numbered", 3))).build(load_source)
