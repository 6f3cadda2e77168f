import gzip

import numpy as np
import pytest

from cdfl.data import DataError
from cdfl.data.sources.mnist import mnist, read_idx


def test_a_folder_in_mnists_form(tmp_path, write_idx):
    rng = np.random.default_rng(0)
    images = {stem: rng.integers(0, 256, (n, 28, 28)) for stem, n in (("train", 30), ("t10k", 12))}
    for stem, pixels in images.items():
        write_idx(tmp_path / f"{stem}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{stem}-labels-idx1-ubyte.gz", np.arange(len(pixels)) % 10)
    data = mnist(tmp_path)
    assert data.input_shape == (1, 28, 28)
    assert np.array_equal(data.train_inputs[:, 0].numpy(), images["train"])
    assert data.test_targets.tolist() == [*range(10), 0, 1]


def test_broken_files_get_one_sentence(tmp_path, write_idx):
    path = tmp_path / "images.gz"
    with pytest.raises(DataError, match=r"images.gz is missing; `cdfl data list`"):
        read_idx(path)
    write_idx(path, np.zeros((4, 28, 28)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"images.gz is truncated or corrupted .*; delete it and fetch it again"):
        read_idx(path)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"truncated or corrupted \(Not a gzipped file"):
        read_idx(path)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-5]))
    with pytest.raises(DataError, match=r"holds 3131 bytes of data where its header \[4, 28, 28\] says 3136"):
        read_idx(path)
    path.write_bytes(gzip.compress(b"PK\3\4"))
    with pytest.raises(DataError, match="is not an IDX file of unsigned bytes: it starts with 504b0304"):
        read_idx(path)


def test_a_label_out_of_range(tmp_path, write_idx):
    for stem in ("train", "t10k"):
        write_idx(tmp_path / f"{stem}-images-idx3-ubyte.gz", np.zeros((2, 28, 28)))
        write_idx(tmp_path / f"{stem}-labels-idx1-ubyte.gz", np.array([3, 11]))
    with pytest.raises(DataError, match=r"mnist train: label 11 of sample 1 is out of range; 10 classes"):
        mnist(tmp_path)
