"""The real files, where they are: shapes, class counts, and the published checksums that apply."""

import pytest
import torch

from cdfl.data import load_source
from cdfl.data.sources import check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "shape", "train", "test", "first"),
    [
        ("mnist", (1, 28, 28), 60_000, 10_000, [5, 0, 4, 1, 9]),
        ("fashion-mnist", (1, 28, 28), 60_000, 10_000, [9, 0, 0, 3, 0]),
        ("usps", (1, 16, 16), 7_291, 2_007, [6, 5, 4, 7, 3]),
        pytest.param("svhn", (3, 32, 32), 73_257, 26_032, [1, 9, 2, 3, 2], marks=pytest.mark.long),
        ("cifar-10", (3, 32, 32), 50_000, 10_000, [6, 9, 9, 4, 1]),
        ("ccpd", (3, 32, 32), 2_751, 670, None),
        pytest.param("mini-imagenet", (3, 84, 84), 20_000, 5_000, [0, 0, 0, 0, 0], marks=pytest.mark.long),
    ],
)
def test_shapes_and_classes(real_data, name, shape, train, test, first):
    data = load_source(name, real_data)
    assert data.input_shape == shape
    assert (len(data.train_targets), len(data.test_targets)) == (train, test)
    assert torch.bincount(data.train_targets, minlength=data.num_classes).min() > 0
    if first is not None:
        assert data.train_targets[:5].tolist() == first
    if name in ("fashion-mnist", "cifar-10", "mini-imagenet"):
        assert len(torch.bincount(data.train_targets).unique()) == 1
    if name == "svhn":
        assert torch.bincount(data.train_targets)[[1, 9]].tolist() == [13_861, 4_659]
    if name == "usps":
        assert torch.bincount(data.train_targets)[[0, 8]].tolist() == [1_194, 542]


def test_fashion_mnist_is_the_published_one(real_data):
    report = check("fashion-mnist", real_data)
    assert report.verdict == "ok"
    assert report.lines[0] == "60,000 train images, 6,000 to 6,000 in a class"
