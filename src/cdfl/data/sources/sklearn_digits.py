"""Read scikit-learn's digits: 1,797 handwritten digits of 8x8 pixels, without a download."""

import numpy as np

from cdfl.data.dataset import Dataset
from cdfl.data.randomness import generator

TEST_IMAGES = 500


def read_digits() -> Dataset:
    """Read the digits and split them, always in the same way, since they are published without a test half.

    >>> digits = read_digits()
    >>> len(digits.train_targets), len(digits.test_targets), digits.input_shape
    (1297, 500, (1, 8, 8))
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # 17 grey levels
    test = _stratified(labels, TEST_IMAGES)
    return Dataset.from_arrays("digits", (pixels[~test], labels[~test]), (pixels[test], labels[test]), num_classes=10)


def _stratified(labels: np.ndarray, count: int) -> np.ndarray:
    """Mark `count` images, as evenly over the classes as possible, always the same ones."""
    shuffled = generator(0, "digits").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    chosen = np.zeros(len(labels), bool)
    chosen[by_class[np.arange(count) * len(labels) // count]] = True
    return chosen
