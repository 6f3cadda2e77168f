import numpy as np
import pytest
import torch

from cdfl.data import DataError, Dataset

IMAGES, LABELS = np.zeros((3, 4, 4), np.uint8), [0, 1, 2]


def test_arrays_become_channels_first():
    colour = np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)
    data = Dataset.from_arrays("mine", (colour, LABELS), (colour, LABELS))
    assert data.input_shape == (3, 4, 5)
    assert data.num_classes == 3
    assert data.train_inputs[1, 2, 3, 4] == colour[1, 3, 4, 2]
    assert data.train_targets.dtype == torch.int64


def test_whole_numbers_are_labels_whatever_their_type():
    objects = np.array([0, np.int8(1), 2.0], object)
    for labels in ([0.0, 1.0, 2.0], np.array([0, 1, 2], np.uint8), np.array([[0], [1], [2]]), objects):
        assert Dataset.from_arrays("mine", (IMAGES, labels), (IMAGES, LABELS)).train_targets.tolist() == LABELS


def test_every_class_has_a_name_of_its_own_or_none_has():
    half = IMAGES, LABELS
    assert Dataset.from_arrays("mine", half, half, class_names=tuple("abcd")).num_classes == 4
    for names in ("ab", "aab"):
        with pytest.raises(DataError, match=rf"mine: {len(names)} class names for 3 classes; expected a different one"):
            Dataset.from_arrays("mine", half, half, 3, class_names=tuple(names))


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            (IMAGES, [0, 1, 7]),
            (IMAGES, LABELS),
            "mine train: label 7 of sample 2 is out of range; 3 classes",
        ),
        ((IMAGES, [0, -1, 2]), (IMAGES, LABELS), "mine train: label -1 of sample 1 is out of range"),
        (
            (IMAGES, [0, 0.7, 2]),
            (IMAGES, LABELS),
            "mine train: label 0.7 is not a whole number; number the classes 0, 1",
        ),
        ((IMAGES, LABELS), (IMAGES, [0, 1, np.nan]), "mine test: label nan is not a whole number"),
        ((IMAGES, LABELS), (IMAGES, [0, 1, np.inf]), "mine test: label inf is not a whole number"),
        ((IMAGES, ["cat", "dog", "cat"]), (IMAGES, LABELS), "mine train: label 'cat' is not a whole number"),
        ((IMAGES, np.array(["cat", 1, 2], object)), (IMAGES, LABELS), "mine train: label 'cat' is not a whole number"),
        ((IMAGES, [0, 1, None]), (IMAGES, LABELS), "mine train: label None is not a whole number"),
        ((IMAGES, np.array([0, 0.7, 2], object)), (IMAGES, LABELS), "mine train: label 0.7 is not a whole number"),
        ((IMAGES, [0, 1]), (IMAGES, LABELS), "mine train: 3 images need as many targets"),
        ((IMAGES, LABELS), (IMAGES[:, :3], LABELS), r"mine: train images are \(1, 4, 4\) .* resize them to one size"),
        ((IMAGES, LABELS), (IMAGES[:0], []), "mine test: there are no images"),
        ((IMAGES.astype(float), LABELS), (IMAGES, LABELS), "images must be uint8, got float64; scale them"),
        ((IMAGES[0], LABELS), (IMAGES, LABELS), r"images must be \(N, H, W\)"),
    ],
)
def test_bad_arrays_are_refused_in_one_sentence(train, test, message):
    with pytest.raises(DataError, match=message):
        Dataset.from_arrays("mine", train, test, num_classes=3)
