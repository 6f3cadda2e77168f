"""Read USPS in LIBSVM's format: https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps."""

import bz2
from pathlib import Path

import numpy as np

from cdfl.data.dataset import Dataset
from cdfl.data.errors import DataError
from cdfl.data.sources.source import FETCH_AGAIN, reading

PIXELS = 16 * 16


def usps(folder: Path) -> Dataset:
    """Read `usps.bz2` (train) and `usps.t.bz2` (test)."""
    train, test = (_read(folder / name) for name in ("usps.bz2", "usps.t.bz2"))
    return Dataset.from_arrays("usps", train, test, num_classes=10)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with reading(path, FETCH_AGAIN):
        lines = bz2.decompress(path.read_bytes()).decode("ascii").splitlines()
        rows = [_parse(line) for line in lines if line.strip()]
        if not rows:
            raise DataError(f"{path} has no lines; expected `LABEL 1:VALUE 2:VALUE ...`")
    images, labels = (np.stack(part) for part in zip(*rows, strict=True))
    # Published from -1 (white paper) to 1 (ink), labels from 1 (digit 0) to 10 (digit 9).
    pixels = np.rint((images.clip(-1, 1) + 1) * 127.5).astype(np.uint8)
    return pixels.reshape(-1, 16, 16), labels - 1


def _parse(line: str) -> tuple[np.ndarray, np.int64]:
    """Read `LABEL INDEX:VALUE ...`; missing values are 0, as in every LIBSVM file."""
    label, _, rest = line.partition(" ")
    pairs = np.array(rest.replace(":", " ").split(), np.float64).reshape(-1, 2)
    at = pairs[:, 0].astype(np.int64)
    if len(at) and not 1 <= at.min() <= at.max() <= PIXELS:
        raise ValueError(f"pixel numbers {at.min()}..{at.max()} where 1..{PIXELS} are expected")
    image = np.zeros(PIXELS)
    image[at - 1] = pairs[:, 1]
    return image, np.int64(label)
