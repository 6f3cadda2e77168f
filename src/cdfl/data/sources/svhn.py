"""Read SVHN, the cropped digits: MATLAB files of http://ufldl.stanford.edu/housenumbers/."""

from pathlib import Path

import numpy as np

from cdfl.data.dataset import Dataset
from cdfl.data.errors import DataError
from cdfl.data.sources.source import FETCH_AGAIN, reading


def svhn(folder: Path) -> Dataset:
    """Read `train_32x32.mat` and `test_32x32.mat`."""
    train, test = (_read(folder / f"{half}_32x32.mat") for half in ("train", "test"))
    return Dataset.from_arrays("svhn", train, test, num_classes=10)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    with reading(path, FETCH_AGAIN), path.open("rb") as file:
        try:
            found = loadmat(file, variable_names=("X", "y"))
            images, labels = found["X"], found["y"].reshape(-1)
        except (MatReadError, NotImplementedError, TypeError, KeyError) as error:
            raise DataError(f"{path} is not a MATLAB file with X and y ({error}); {FETCH_AGAIN}") from error
    if images.shape != (32, 32, 3, len(labels)):
        raise DataError(f"{path}: X is {images.shape} for {len(labels)} labels; expected (32, 32, 3, {len(labels)})")
    if len(labels) and not 1 <= labels.min() <= labels.max() <= 10:
        raise DataError(
            f"{path}: a label is out of range; SVHN numbers its digits 1..10, got {labels.min()}..{labels.max()}"
        )
    return images.transpose(3, 0, 1, 2), labels % 10  # the digit 0 is published as 10
