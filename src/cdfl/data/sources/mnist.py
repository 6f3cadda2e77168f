"""Read MNIST and FashionMNIST: gzipped IDX files, http://yann.lecun.com/exdb/mnist/."""

import gzip
from functools import partial
from pathlib import Path

import numpy as np

from cdfl.data.dataset import Dataset
from cdfl.data.errors import DataError
from cdfl.data.sources.source import FETCH_AGAIN, reading

UINT8 = 8  # the type code of unsigned bytes, the only one these datasets use


def read_idx(path: Path) -> np.ndarray:
    """Read one gzipped IDX file of unsigned bytes."""
    with reading(path, FETCH_AGAIN):
        raw = gzip.decompress(path.read_bytes())
        if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != UINT8:
            raise DataError(f"{path} is not an IDX file of unsigned bytes: it starts with {raw[:4].hex() or 'nothing'}")
        start = 4 + 4 * raw[3]
        shape = [int.from_bytes(raw[at : at + 4]) for at in range(4, start, 4)]
        expected = int(np.prod(shape))
        if len(raw) - start != expected:
            raise DataError(f"{path} holds {len(raw) - start} bytes of data where its header {shape} says {expected}")
        return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_mnist(name: str, folder: Path) -> Dataset:
    """Read the four files of MNIST, or of a dataset in the same format."""
    train, test = (
        (read_idx(folder / f"{stem}-images-idx3-ubyte.gz"), read_idx(folder / f"{stem}-labels-idx1-ubyte.gz"))
        for stem in ("train", "t10k")
    )
    return Dataset.from_arrays(name, train, test, num_classes=10)


mnist = partial(read_mnist, "mnist")
fashion_mnist = partial(read_mnist, "fashion-mnist")
