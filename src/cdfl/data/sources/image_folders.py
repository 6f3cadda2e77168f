"""Read images in class folders: MiniImageNet in its usual forms, and a user's own images.

Accepts `CLASS/*.jpg`; `{train,test}/CLASS/*.jpg` with a common class; other folders of class folders, which are pooled;
and Ravi and Larochelle's `images/*.jpg` with `train.csv`, `val.csv` and `test.csv`. Each may be a folder or a `.zip` or
`.tar` archive. Names that start with a dot are ignored.
"""

import csv
import io
import os
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from cdfl.data.dataset import Dataset
from cdfl.data.errors import DataError
from cdfl.data.randomness import generator
from cdfl.data.sources.npz_and_mosaics import remember
from cdfl.data.sources.source import reading

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
TABLES = ("train.csv", "val.csv", "test.csv")
SET_APART = {"train", "training", "test", "testing", "val", "valid", "validation"}  # names of deliberate splits
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
REPLACE = "replace it, or move it away"
TEST_SHARE = 0.2  # the test share, as in the paper: 12,000 of 60,000 MiniImageNet images

Files = dict[PurePosixPath, bytes]
Classes = dict[str, list[PurePosixPath]]
Parts = dict[str, Classes]  # train, test, ..., before the final split


def mini_imagenet(folder: Path) -> Dataset:
    """Read all 100 classes at 84x84; each class is split 480 / 120 unless the folders define a split.

    Decoding takes minutes, so the result is stored next to the images as `data.npz`.
    """
    archives = sorted(path for path in folder.iterdir() if path.name.endswith(ARCHIVES))
    dataset = read_folder("mini-imagenet", archives[0] if archives else folder, side=84)
    return remember(folder, replace(dataset, class_names=()))  # like all published datasets


def read_folder(name: str, path: Path, side: int | None = None) -> Dataset:
    """Read class folders; with `side`, every image is resized to that square."""
    files = _read_files(path)
    images = sorted(file for file in files if file.name.lower().endswith(ENDINGS))
    train, test, notes = _halves(path, _listed(path, files, images) or _in_folders(path, images))
    classes = sorted(train.keys() | test.keys())
    encoded = {file: files[file] for half in (train, test) for file in _all(half)}
    if side is None:
        _check_sizes(path, encoded)
    pixels = {file: _decode(_place(path, file), raw, side) for file, raw in encoded.items()}
    halves = []
    for half in (train, test):
        shown = [pixels[file] for label in classes for file in half.get(label, [])]
        labels = [at for at, label in enumerate(classes) for _ in half.get(label, [])]
        halves.append((np.stack(shown) if shown else np.zeros((0, 1, 1, 3), np.uint8), np.array(labels, np.int64)))
    return Dataset.from_arrays(name, halves[0], halves[1], len(classes), tuple(classes), notes)


def _read_files(path: Path) -> Files:
    """Return every image and table below `path`, still encoded, by its relative path."""
    files: Files = {}
    with reading(path, REPLACE):
        if path.name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                files = {PurePosixPath(n): archive.read(n) for n in archive.namelist() if _wanted(n)}
        elif path.name.endswith(ARCHIVES):
            with tarfile.open(path) as tar:
                for member in tar:
                    file = tar.extractfile(member) if _wanted(member.name) else None
                    if file is not None:
                        files[PurePosixPath(member.name)] = file.read()
        else:
            for found in _below(path):
                if _wanted(found.name) and found.is_file():
                    files[PurePosixPath(found.relative_to(path).as_posix())] = found.read_bytes()
    if not any(file.name.lower().endswith(ENDINGS) for file in files):
        raise DataError(
            f"{path} has no images and no texts; expected CLASS/*.jpg, train/CLASS/*.jpg and test/CLASS/*.jpg, or "
            "NAME.txt"
        )
    return files


def _below(folder: Path) -> Iterator[Path]:
    """Yield every file outside hidden folders; raise OSError for an unreadable folder, which `rglob` would skip."""

    def fail(error: OSError) -> None:
        raise error

    for at, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(at, name) for name in names)


def _wanted(name: str) -> bool:
    return name.lower().endswith((*ENDINGS, ".csv")) and not any(
        part.startswith(".") for part in PurePosixPath(name).parts
    )


def _listed(path: Path, files: Files, images: list[PurePosixPath]) -> Parts:
    """Return the parts that `train.csv`, `val.csv` and `test.csv` list, if there are such tables."""
    named = {file.name: file for file in images}
    tables = {file: _labels(_place(path, file), raw) for file, raw in sorted(files.items()) if file.name in TABLES}
    lost = sorted({name for labels in tables.values() for name in labels} - named.keys())
    if lost:
        raise DataError(f"{path}: {lost[0]} is in the tables but not among the images ({len(lost)} are missing)")
    if tables and len(named) < len(images):
        raise DataError(f"{path}: the tables name images by file name, but some occur twice; rename these files")
    parts: Parts = defaultdict(lambda: defaultdict(list))
    for table, labels in tables.items():
        for name, file in named.items():
            if name in labels:
                parts[table.stem][labels[name]].append(file)
    return parts


def _labels(place: str, raw: bytes) -> dict[str, str]:
    """Return the label of each file name in a table."""
    with reading(place, REPLACE):
        table = csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        columns = list(table.fieldnames or ())
        if not {"filename", "label"} <= set(columns):
            raise DataError(
                f"{place} has the columns {', '.join(columns) or '(none)'}; expected filename and label: {REPLACE}"
            )
        rows = list(table)
    if not all(row["filename"] and row["label"] for row in rows):
        raise DataError(f"{place} has a row without filename or label; {REPLACE}")
    return {row["filename"]: row["label"] for row in rows}


def _in_folders(path: Path, images: list[PurePosixPath]) -> Parts:
    """Return the parts by the name of the folder around the class folders; "" if there is none."""
    parts: Parts = defaultdict(lambda: defaultdict(list))
    for file in images:
        if len(file.parts) < 2:
            raise DataError(f"{path}: {file} is not in a class folder; expected CLASS/{file.name}")
        parts[file.parent.parent.name.lower()][file.parent.name].append(file)
    return parts


def _halves(path: Path, parts: Parts) -> tuple[Classes, Classes, tuple[str, ...]]:
    """Return train and test halves and notes. Without given halves, a fixed fifth of each class is the test half.

    The few-shot split of MiniImageNet has different classes in train and test; all are pooled for classification.
    Several folders of one class are pooled, too, unless their names show a split: test images are never trained on.
    """
    if parts.keys() == {"train", "test"} and parts["train"].keys() & parts["test"].keys():
        return parts["train"], parts["test"], ()
    counts = Counter(label for part in parts.values() for label in part)
    label, times = counts.most_common(1)[0]
    if times > 1 and SET_APART & parts.keys():
        examples = ", ".join(str(next(_all(part))) for part in parts.values())
        raise DataError(
            f"{path} has {examples}: the class {label!r} in {times} places; expected CLASS/*.jpg alone, or "
            "train/CLASS/*.jpg and test/CLASS/*.jpg and nothing else: rename the folders, or move the others away"
        )
    pooled = {label: sorted(file for part in parts.values() for file in part.get(label, ())) for label in counts}
    train, test = _divide(pooled)
    if len(parts) == 1:
        return train, test, ()
    names = ", ".join(sorted(part or "." for part in parts))
    are = "are" if times > 1 else "share no class, so all are"
    return train, test, (f"{path.name}: {names} {are} pooled and a fifth of each class is for testing",)


def _divide(classes: Classes) -> tuple[Classes, Classes]:
    """Split off a fixed fifth of each class as the test half."""
    train: Classes = {}
    test: Classes = {}
    for label, images in classes.items():
        order = generator(0, f"folder {label}").permutation(len(images))
        cut = max(1, round(TEST_SHARE * len(images)))
        test[label] = [images[i] for i in sorted(order[:cut])]
        train[label] = [images[i] for i in sorted(order[cut:])]
    return train, test


def _all(half: Classes) -> Iterator[PurePosixPath]:
    return (file for files in half.values() for file in files)


def _place(path: Path, file: PurePosixPath) -> str:
    """Describe where a file is."""
    return str(path / file) if path.is_dir() else f"{file} in {path}"


@contextmanager
def _opened(place: str, raw: bytes) -> Iterator["Image"]:
    """Open an image; only its header is read."""
    from PIL import Image, UnidentifiedImageError

    with reading(place, REPLACE):
        try:
            image = Image.open(io.BytesIO(raw))
        except UnidentifiedImageError as error:
            raise DataError(f"{place} is not an image, or is truncated; {REPLACE}") from error
        except Image.DecompressionBombError as error:
            raise DataError(f"{place}: {error}; {REPLACE}") from error
        with image:
            yield image


def _decode(place: str, raw: bytes, side: int | None) -> np.ndarray:
    from PIL.Image import Resampling

    with _opened(place, raw) as image:
        rgb = image.convert("RGB")
    if side is not None and rgb.size != (side, side):
        rgb = rgb.resize((side, side), Resampling.BILINEAR)
    return np.asarray(rgb)


def _check_sizes(path: Path, encoded: Files) -> None:
    """Raise DataError for different sizes before any image is decoded: photographs might not fit into memory."""
    sizes = set()
    for file, raw in encoded.items():
        with _opened(_place(path, file), raw) as image:
            sizes.add(image.size)
    if len(sizes) > 1:
        few = ", ".join(f"{width}x{height}" for width, height in sorted(sizes)[:3])
        raise DataError(f"{path}: images of different sizes ({few}); resize them to one size first")
