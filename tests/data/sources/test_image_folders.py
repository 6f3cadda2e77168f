import io
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from cdfl.data import DataError
from cdfl.data.sources.image_folders import mini_imagenet, read_folder


def picture(shade: int, size=(84, 84)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(buffer, "png")
    return buffer.getvalue()


def place(folder, files: dict[str, bytes]) -> None:
    for name, raw in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)


CLASSES = {f"n0{c}/{i}.png": picture(10 * c + i) for c in (3, 1, 2) for i in range(10)}


def test_class_folders_are_divided_by_class(tmp_path):
    place(tmp_path, CLASSES)
    data = mini_imagenet(tmp_path)
    assert np.bincount(data.train_targets).tolist() == [8, 8, 8]
    assert np.bincount(data.test_targets).tolist() == [2, 2, 2]
    # Class numbers follow the sorted names: n01 has the shades 10..19.
    assert (data.train_inputs[:, 0, 0, 0] // 10 - 1).tolist() == data.train_targets.tolist()
    shades = [int(image[0, 0, 0]) for image in (*data.train_inputs, *data.test_inputs)]
    assert sorted(shades) == list(range(10, 40))


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_is_read_like_its_folder(tmp_path, write_tar, kind):
    place(tmp_path / "folder", CLASSES)
    expected = read_folder("x", tmp_path / "folder")
    archive = tmp_path / f"mini.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            for name, raw in CLASSES.items():
                file.writestr(f"top/{name}", raw)
    else:
        write_tar(archive, CLASSES)
    data = read_folder("x", archive)
    assert np.array_equal(data.train_inputs, expected.train_inputs)


def test_given_halves_are_kept(tmp_path):
    place(tmp_path, {f"{half}/{c}/1.png": picture(s) for half, s in (("train", 5), ("test", 6)) for c in "ab"})
    data = read_folder("x", tmp_path)
    assert data.train_inputs.unique().tolist() == [5]
    assert data.test_inputs.unique().tolist() == [6]


def test_the_few_shot_split_is_pooled(tmp_path):
    files = {f"{half}/{half}-class/{i}.png": picture(i) for half in ("train", "val", "test") for i in range(5)}
    place(tmp_path, files)
    data = read_folder("x", tmp_path)
    assert data.num_classes == 3
    assert np.bincount(data.test_targets).tolist() == [1, 1, 1]
    said = (
        f"{tmp_path.name}: test, train, val share no class, so all are pooled and a fifth of each class is for testing"
    )
    assert data.notes == (said,)


def test_folders_of_one_class_without_a_split_are_pooled(tmp_path):
    place(tmp_path, {f"site{s}/{c}/{i}.png": picture(s) for s in (1, 2) for c in ("car", "dog") for i in range(10)})
    data = read_folder("x", tmp_path)
    assert [np.bincount(labels).tolist() for labels in (data.train_targets, data.test_targets)] == [[16, 16], [4, 4]]
    shades = np.concatenate([data.train_inputs[:, 0, 0, 0], data.test_inputs[:, 0, 0, 0]])
    assert np.bincount(shades).tolist() == [0, 20, 20]
    assert data.notes == (f"{tmp_path.name}: site1, site2 are pooled and a fifth of each class is for testing",)
    place(tmp_path, {"emu/1.png": picture(3)})
    assert read_folder("x", tmp_path).notes[0].startswith(f"{tmp_path.name}: ., site1, site2 are pooled")


@pytest.mark.parametrize(
    "hidden", [".thumbs/car/1.png", "train/car/.ipynb_checkpoints/1.png", ".cache/train/car/1.png"]
)
def test_hidden_folders_are_left_out(tmp_path, write_tar, hidden):
    files = {f"{half}/{c}/1.png": picture(1) for half in ("train", "test") for c in ("car", "dog")}
    place(tmp_path / "folder", {**files, hidden: picture(2)})
    write_tar(tmp_path / "mine.tar.gz", {**files, hidden: picture(2)})
    for path in (tmp_path / "folder", tmp_path / "mine.tar.gz"):
        data = read_folder("x", path)
        assert (data.train_targets.tolist(), data.test_targets.tolist()) == ([0, 1], [0, 1])
        assert data.train_inputs.unique().tolist() == [1]


def test_halves_need_not_have_the_same_classes(tmp_path):
    halves = {"train": "abc", "test": "bcd"}
    place(tmp_path, {f"{half}/{c}/1.png": picture(len(half)) for half, classes in halves.items() for c in classes})
    data = read_folder("x", tmp_path)
    assert data.train_inputs.unique().tolist() == [5]
    assert (data.train_targets.tolist(), data.test_targets.tolist()) == ([0, 1, 2], [1, 2, 3])
    assert (data.num_classes, data.notes) == (4, ())


@pytest.mark.parametrize("third", ["val/a/1.png", "extra/a/1.png", "train/loose.png", "train/a/more/1.png", "b/1.png"])
def test_a_third_folder_is_refused_and_test_images_are_never_trained_on(tmp_path, third):
    place(tmp_path, {"train/a/1.png": picture(1), "test/a/1.png": picture(2), third: picture(3)})
    with pytest.raises(DataError, match=rf"{third}.*: the class 'a' in \d places; expected CLASS/.*, or train/CLASS"):
        read_folder("x", tmp_path)


@pytest.mark.parametrize("test", ["test", "testing"])
def test_halves_under_another_name_are_refused(tmp_path, test):
    place(tmp_path, {"training/a/1.png": picture(1), f"{test}/a/1.png": picture(2)})
    with pytest.raises(DataError, match=r"training/a/1.png: the class 'a' in 2 places; .*: rename the folders"):
        read_folder("x", tmp_path)


def test_tables_beside_one_folder_of_images(tmp_path):
    files = {f"images/{i}.png": picture(i) for i in range(10)}
    rows = "filename,label\n" + "".join(f"{i}.png,c{i % 2}\n" for i in range(10))
    place(tmp_path, {**files, "train.csv": rows.encode()})
    data = read_folder("x", tmp_path)
    assert (data.train_inputs[:, 0, 0, 0] % 2).tolist() == data.train_targets.tolist()
    (tmp_path / "images" / "3.png").unlink()
    with pytest.raises(DataError, match=r"3.png is in the tables but not among the images \(1 are missing\)"):
        read_folder("x", tmp_path)


def test_tables_may_have_the_line_ends_of_any_system(tmp_path):
    files = {f"images/{i}.png": picture(i) for i in range(2)}
    for end in ("\n", "\r\n", "\r"):
        place(tmp_path, {**files, "train.csv": end.join(["filename,label", "0.png,a", "1.png,a", ""]).encode()})
        assert read_folder("x", tmp_path).class_names == ("a",)


def test_tables_that_share_classes_are_the_two_halves(tmp_path):
    files = {f"images/{i}.png": picture(i) for i in range(10)}
    for half, numbers in (("train", range(6)), ("test", range(6, 10))):
        files[f"{half}.csv"] = ("filename,label\n" + "".join(f"{i}.png,c{i % 2}\n" for i in numbers)).encode()
    place(tmp_path, files)
    data = read_folder("x", tmp_path)
    assert data.train_inputs.unique().tolist() == list(range(6))
    assert data.test_inputs.unique().tolist() == list(range(6, 10))
    place(tmp_path, {"others/3.png": picture(1)})
    with pytest.raises(DataError, match="the tables name images by file name, but some occur twice"):
        read_folder("x", tmp_path)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (b"id,score\n1,2\n", r"a/test.csv has the columns id, score; expected filename and label: replace it, or move"),
        (b"", r"test.csv has the columns \(none\); expected filename and label"),
        (b"filename,label\n1.png\n", r"test.csv has a row without filename or label"),
        (
            b"filename,label\n" + b"x" * 200_000,
            r"test.csv is truncated or corrupted \(field larger than .*\); replace it",
        ),
        (b"\xff\xfe\0", r"test.csv is truncated or corrupted \(.*utf-8.*\); replace it, or move it away"),
    ],
)
def test_a_stray_table_is_refused(tmp_path, table, message):
    place(tmp_path, {"a/1.png": picture(1), "b/1.png": picture(2), "a/test.csv": table})
    with pytest.raises(DataError, match=message):
        read_folder("x", tmp_path)


def test_mini_imagenet_is_resized_and_a_users_images_are_not(tmp_path):
    place(tmp_path, {f"a/{i}.png": picture(1, (90 + i, 80)) for i in range(4)})
    assert mini_imagenet(tmp_path).input_shape == (3, 84, 84)
    with pytest.raises(DataError, match=r"images of different sizes \(90x80, 91x80, 92x80\); resize them"):
        read_folder("mine", tmp_path)


def test_different_sizes_are_found_before_any_image_is_decoded(tmp_path):
    undecodable = picture(1, (90, 80))[:-40]  # its header is whole
    place(tmp_path, {"a/1.png": undecodable, "b/1.png": picture(1, (91, 80))})
    with pytest.raises(DataError, match=r"images of different sizes \(90x80, 91x80\); resize them"):
        read_folder("mine", tmp_path)


def test_bad_folders_get_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"has no images and no texts; expected CLASS/\*.jpg"):
        read_folder("x", tmp_path)
    place(tmp_path, {"loose.png": picture(1)})
    with pytest.raises(DataError, match=r"loose.png is not in a class folder; expected CLASS/loose.png"):
        read_folder("x", tmp_path)
    (tmp_path / "loose.png").unlink()
    place(tmp_path, {"a/1.png": picture(1), "a/2.png": picture(2)[:-40]})
    with pytest.raises(DataError, match=r"a/2.png is truncated or corrupted \(.*\); replace it, or move it away"):
        read_folder("x", tmp_path)
    place(tmp_path, {"a/2.png": picture(2)[:40]})
    with pytest.raises(DataError, match=r"a/2.png is not an image, or is truncated; replace it, or move it away"):
        read_folder("x", tmp_path)
    archive = tmp_path / "mini.zip"
    archive.write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=r"mini.zip is truncated or corrupted \(.*\); replace it"):
        mini_imagenet(tmp_path)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("top/a/1.png", b"no picture")
    with pytest.raises(DataError, match=r"top/a/1.png in .*mini.zip is not an image"):
        mini_imagenet(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("closed", ["b", "b/1.png"])
def test_what_may_not_be_read_is_said_and_not_left_out(tmp_path, closed):
    place(tmp_path, {f"{c}/{i}.png": picture(i) for c in "ab" for i in range(2)})
    (tmp_path / closed).chmod(0)
    try:
        with pytest.raises(DataError, match=rf"{closed} cannot be read: Permission denied; check who may read it"):
            read_folder("x", tmp_path)
    finally:
        (tmp_path / closed).chmod(0o700)
