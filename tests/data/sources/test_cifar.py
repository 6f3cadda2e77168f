import numpy as np
import pytest

from cdfl.data import DataError
from cdfl.data.sources.cifar import cifar_10, cifar_100


def records(labels: list[list[int]], seed: int = 0) -> tuple[bytes, np.ndarray]:
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 32, 32), np.uint8)
    rows = [bytes(label) + image.tobytes() for label, image in zip(labels, pixels, strict=True)]
    return b"".join(rows), pixels


def test_cifar_100_takes_the_fine_label(tmp_path, write_tar):
    train, pixels = records([[19, 99], [0, 3], [4, 50]])
    test, _ = records([[1, 7]], seed=1)
    files = {"fine_label_names.txt": b"apple", "train.bin": train, "test.bin": test}
    write_tar(tmp_path / "cifar-100-binary.tar.gz", {f"cifar-100-binary/{name}": raw for name, raw in files.items()})
    data = cifar_100(tmp_path)
    assert data.train_targets.tolist() == [99, 3, 50]
    assert np.array_equal(data.train_inputs.numpy(), pixels)
    assert data.test_targets.tolist() == [7]
    assert data.num_classes == 100


def test_cifar_10_joins_its_five_batches_in_order(tmp_path, write_tar):
    batches = {f"data_batch_{i}.bin": records([[i], [i + 1]], seed=i)[0] for i in (3, 1, 5, 2, 4)}
    batches["test_batch.bin"] = records([[9]])[0]
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(path, {f"cifar-10-batches-bin/{name}": raw for name, raw in batches.items()})
    data = cifar_10(tmp_path)
    assert data.train_targets.tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert data.input_shape == (3, 32, 32)


def test_broken_archives_get_one_sentence(tmp_path, write_tar):
    path = tmp_path / "cifar-100-binary.tar.gz"
    with pytest.raises(DataError, match="is missing"):
        cifar_100(tmp_path)
    write_tar(path, {"cifar-100-python/train": b""})
    with pytest.raises(DataError, match=r"has no cifar-100-binary/train.bin; is it the binary version"):
        cifar_100(tmp_path)
    good, _ = records([[0, 0]])
    write_tar(path, {"cifar-100-binary/train.bin": good[:-1], "cifar-100-binary/test.bin": good})
    with pytest.raises(DataError, match=r"train.bin in .* has 3073 bytes; expected records of 3074"):
        cifar_100(tmp_path)
    write_tar(path, {"cifar-100-binary/train.bin": good, "cifar-100-binary/test.bin": good})
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(DataError, match="truncated or corrupted"):
        cifar_100(tmp_path)
    bad, _ = records([[0, 100]])
    write_tar(path, {"cifar-100-binary/train.bin": bad, "cifar-100-binary/test.bin": good})
    with pytest.raises(DataError, match=r"label 100 of sample 0 is out of range; 100 classes are numbered 0..99"):
        cifar_100(tmp_path)
