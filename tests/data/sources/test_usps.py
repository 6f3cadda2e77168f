import bz2

import pytest

from cdfl.data import DataError
from cdfl.data.sources.usps import usps


def line(label: int, values: dict[int, float]) -> str:
    return f"{label} " + " ".join(f"{at}:{value}" for at, value in values.items()) + " \n"


def write(folder, *lines: str, name: str = "usps.bz2") -> None:
    (folder / name).write_bytes(bz2.compress("".join(lines).encode()))


def test_values_labels_and_what_is_left_out(tmp_path):
    write(tmp_path, line(1, dict.fromkeys(range(1, 257), -1.0)), line(10, {2: 1.0, 17: 0.5}))
    write(tmp_path, line(4, {256: -0.2}), name="usps.t.bz2")
    data = usps(tmp_path)
    assert data.train_targets.tolist() == [0, 9]
    assert data.test_targets.tolist() == [3]
    assert data.train_inputs[0].max() == 0
    second = data.train_inputs[1, 0]
    assert (second[0, 1], second[1, 0], second[0, 0]) == (255, 191, 128)  # 0 is the middle grey
    assert data.test_inputs[0, 0, 15, 15] == 102


def test_broken_files_get_one_sentence(tmp_path):
    write(tmp_path, line(1, {1: 0.0}), name="usps.t.bz2")
    path = tmp_path / "usps.bz2"
    with pytest.raises(DataError, match=r"usps.bz2 is missing"):
        usps(tmp_path)
    write(tmp_path, *[line(1, {at: 0.5}) for at in range(1, 200)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"usps.bz2 is truncated or corrupted"):
        usps(tmp_path)
    write(tmp_path, line(3, {257: 1.0}))
    with pytest.raises(DataError, match=r"pixel numbers 257..257 where 1..256 are expected"):
        usps(tmp_path)
    write(tmp_path, "\n")
    with pytest.raises(DataError, match="has no lines; expected `LABEL"):
        usps(tmp_path)
    write(tmp_path, line(11, {1: 1.0}))
    with pytest.raises(DataError, match="label 10 of sample 0 is out of range"):
        usps(tmp_path)
