import numpy as np
import pytest
from scipy.io import savemat

from cdfl.data import DataError
from cdfl.data.sources.svhn import svhn


def write(folder, labels, half="train", side=32):
    images = np.random.default_rng(0).integers(0, 256, (side, side, 3, len(labels)), np.uint8)
    savemat(folder / f"{half}_32x32.mat", {"X": images, "y": np.array(labels, np.uint8)[:, None]})
    return images


def test_ten_is_the_digit_zero(tmp_path):
    images = write(tmp_path, [1, 10, 9])
    write(tmp_path, [5, 10], half="test")
    data = svhn(tmp_path)
    assert data.train_targets.tolist() == [1, 0, 9]
    assert data.test_targets.tolist() == [5, 0]
    assert np.array_equal(data.train_inputs[2].numpy(), images[..., 2].transpose(2, 0, 1))


def test_broken_files_get_one_sentence(tmp_path):
    write(tmp_path, [1], half="test")
    path = tmp_path / "train_32x32.mat"
    with pytest.raises(DataError, match=r"train_32x32.mat is missing"):
        svhn(tmp_path)
    path.write_bytes(b"no matlab at all" * 20)
    with pytest.raises(DataError, match=r"train_32x32.mat is (no MATLAB file|truncated)"):
        svhn(tmp_path)
    write(tmp_path, list(range(1, 11)))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"train_32x32.mat is (no MATLAB file|truncated)"):
        svhn(tmp_path)
    savemat(path, {"X": np.zeros(3)})
    with pytest.raises(DataError, match="is not a MATLAB file with X and y"):
        svhn(tmp_path)
    write(tmp_path, [1, 2], side=30)
    with pytest.raises(DataError, match=r"X is \(30, 30, 3, 2\) for 2 labels; expected \(32, 32, 3, 2\)"):
        svhn(tmp_path)
    write(tmp_path, [0, 11])
    with pytest.raises(DataError, match=r"a label is out of range; SVHN numbers its digits 1..10, got 0..11"):
        svhn(tmp_path)
