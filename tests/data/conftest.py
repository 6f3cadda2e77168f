import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from cdfl.data import Dataset

settings.register_profile("cdfl", deadline=None)  # the first call of a torch kernel is slow
settings.load_profile("cdfl")

Make = Callable[..., Dataset]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real datasets, where there is one."""
    repository = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("CDFL_DATA") or repository.parent / "shared" / "datasets")
    if not folder.is_dir():
        pytest.skip(f"no real datasets in {folder}; set CDFL_DATA to run this test")
    return folder


@pytest.fixture(scope="session")
def make_dataset() -> Make:
    """Datasets whose every image is different, so that an image can be told from its pixels."""

    def make(name="tiny", train=200, test=100, shape=(8, 8, 1), num_classes=10, seed=0) -> Dataset:
        rng = np.random.default_rng(seed)
        halves = [
            (rng.integers(0, 256, (count, *shape), np.uint8), np.arange(count) % num_classes) for count in (train, test)
        ]
        return Dataset.from_arrays(name, halves[0], halves[1], num_classes)

    return make
