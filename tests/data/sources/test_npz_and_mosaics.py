from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from cdfl.data import DataError
from cdfl.data.sources.npz_and_mosaics import has_npz, read_npz, read_npz_folder, write_npz


def mosaic(path, tiles, side, pitch, columns):
    rows = -(-len(tiles) // columns)
    canvas = np.zeros((rows * pitch, columns * pitch, 3), np.uint8)
    for at, tile in enumerate(tiles):
        top, left = at // columns * pitch, at % columns * pitch
        canvas[top : top + side, left : left + side] = tile
    Image.fromarray(canvas).save(path, lossless=True)


def test_mosaics_are_cut_in_the_order_of_the_labels(tmp_path):
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 256, (7, 84, 84, 3), np.uint8), rng.integers(0, 256, (2, 84, 84, 3), np.uint8)
    mosaic(tmp_path / "train-00.webp", train[:4], 84, 96, columns=2)
    mosaic(tmp_path / "train-01.webp", train[4:], 84, 96, columns=2)  # the last tile is filling
    mosaic(tmp_path / "test-00.webp", test, 84, 96, columns=2)
    np.savez(tmp_path / "labels.npz", train_labels=np.arange(7, dtype=np.uint8), test_labels=np.arange(2))
    data = read_npz_folder("mini-imagenet", tmp_path, num_classes=100)
    assert np.array_equal(data.train_inputs.permute(0, 2, 3, 1).numpy(), train)
    assert np.array_equal(data.test_inputs.permute(0, 2, 3, 1).numpy(), test)
    (tmp_path / "train-01.webp").unlink()
    with pytest.raises(DataError, match="has 7 train labels but only 4 images; is a mosaic missing"):
        read_npz_folder("mini-imagenet", tmp_path, num_classes=100)


def test_npz_there_and_back(tmp_path, make_dataset):
    data = replace(make_dataset(shape=(5, 6, 3)), notes=("pooled", "ü"), class_names=tuple("jihgfedcba"))
    path = tmp_path / "data.npz"
    write_npz(path, data)
    assert has_npz(tmp_path)
    again = read_npz("mine", path)
    assert torch.equal(again.train_inputs, data.train_inputs)
    assert torch.equal(again.test_targets, data.test_targets)
    assert (again.notes, again.class_names) == (data.notes, data.class_names)
    assert [file.name for file in tmp_path.iterdir()] == ["data.npz"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (np.array(["a", "b"], object), ()),  # objects are never loaded
        (np.arange(5), ()),
        (np.array(["ü".encode(), b"b"]), ("ü", "b")),
    ],
)
def test_only_words_are_notes_and_class_names(tmp_path, given, names):
    path, images = tmp_path / "mine.npz", np.zeros((2, 4, 4), np.uint8)
    halves = {"train_images": images, "train_labels": [0, 1], "test_images": images, "test_labels": [0, 1]}
    np.savez(path, **halves, notes=given, class_names=given)
    data = read_npz("mine", path)
    assert data.notes == data.class_names == names


def test_broken_npz_files_get_one_sentence(tmp_path, make_dataset):
    path = tmp_path / "mine.npz"
    np.savez(path, train_images=np.zeros(3), y=np.zeros(3))
    with pytest.raises(DataError, match="has no train_labels, test_images, test_labels; expected the arrays"):
        read_npz("mine", path)
    write_npz(path, make_dataset())
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"mine.npz is not an .npz file, or is truncated; save one with numpy"):
        read_npz("mine", path)
    np.savez(path, train_images=np.array([object()]), train_labels=0, test_images=0, test_labels=0)
    with pytest.raises(DataError, match=r"mine.npz: train_images cannot be read \(Object .*\); save it as numbers"):
        read_npz("mine", path)
    np.save(path.with_suffix(".npy"), np.zeros(3))
    path.with_suffix(".csv").write_text("label,pixel\n0,255\n")
    for suffix in (".npy", ".csv"):
        with pytest.raises(DataError, match=r"mine\.... is not an .npz file, or is truncated; save one with numpy"):
            read_npz("mine", path.with_suffix(suffix))


def test_what_is_wrong_with_the_arrays_is_said_with_the_name_of_their_file(tmp_path):
    path, images = tmp_path / "mine.npz", np.zeros((2, 4, 4), np.uint8)
    np.savez(path, train_images=images, train_labels=[0.7, 1.7], test_images=images, test_labels=[0, 1])
    with pytest.raises(DataError, match=r"mine\.npz: mine train: label 0\.7 is not a whole number"):
        read_npz("mine", path)
