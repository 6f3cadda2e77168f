"""Read CIFAR-10 and CIFAR-100: the binary archives of https://www.cs.toronto.edu/~kriz/cifar.html.

Of the three published versions this one holds only bytes; the "python" version would have to be unpickled.
"""

import tarfile
from pathlib import Path

import numpy as np

from cdfl.data.dataset import Dataset
from cdfl.data.errors import DataError
from cdfl.data.sources.source import FETCH_AGAIN, reading

PIXELS = 3 * 32 * 32


def cifar_10(folder: Path) -> Dataset:
    """Read records of one label and 3,072 pixels, in five train files and a test file."""
    train = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    test = ["cifar-10-batches-bin/test_batch.bin"]
    return _read("cifar-10", folder / "cifar-10-binary.tar.gz", train, test, num_labels=1, num_classes=10)


def cifar_100(folder: Path) -> Dataset:
    """Read records of a coarse label, a fine label (used here) and 3,072 pixels."""
    train, test = ["cifar-100-binary/train.bin"], ["cifar-100-binary/test.bin"]
    return _read("cifar-100", folder / "cifar-100-binary.tar.gz", train, test, num_labels=2, num_classes=100)


def _read(name: str, path: Path, train: list[str], test: list[str], num_labels: int, num_classes: int) -> Dataset:
    with reading(path, FETCH_AGAIN):
        raw: dict[str, bytes] = {}
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:  # in the archive's order: seeking back in gzip would unpack it again
                file = archive.extractfile(member) if member.name in (*train, *test) else None
                if file is not None:
                    raw[member.name] = file.read()
        return Dataset.from_arrays(
            name,
            _records(path, [(file, raw.get(file)) for file in train], num_labels),
            _records(path, [(file, raw.get(file)) for file in test], num_labels),
            num_classes,
        )


def _records(path: Path, files: list[tuple[str, bytes | None]], num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    size = num_labels + PIXELS
    parts = []
    for file, raw in files:
        if raw is None:
            raise DataError(f"{path} has no {file}; is it the binary version of the archive?")
        if not raw or len(raw) % size:
            raise DataError(f"{file} in {path} has {len(raw)} bytes; expected records of {size}")
        parts.append(np.frombuffer(raw, np.uint8).reshape(-1, size))
    records = np.concatenate(parts)
    images = records[:, num_labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, records[:, num_labels - 1]
