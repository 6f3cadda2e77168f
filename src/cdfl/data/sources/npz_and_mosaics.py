"""Datasets in few files: `data.npz`, or mosaics of many images with their labels in `labels.npz`.

`data.npz` holds train_images, train_labels, test_images and test_labels, images as uint8 `(N, H, W[, C])`. It is also
the simplest form for a user's own dataset; it may also hold the words `class_names`, class 0 first, and `notes`. In a
mosaic, images are in the order of the labels, row by row from the top left, in tiles of `PITCH` pixels; the upper left
`SIDE` pixels of a tile are the image.
"""

import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from cdfl.data.dataset import Dataset, Half
from cdfl.data.errors import DataError
from cdfl.data.sources.source import reading

HALVES: tuple[Half, Half] = ("train", "test")
TILES = {"cifar-10": (32, 32), "svhn": (32, 32), "mini-imagenet": (84, 96)}  # SIDE, PITCH
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
OPTIONAL = ("class_names", "notes")


def has_npz(folder: Path) -> bool:
    """Return whether the folder holds `data.npz` or `labels.npz`."""
    return (folder / "data.npz").is_file() or (folder / "labels.npz").is_file()


def read_npz_folder(name: str, folder: Path, num_classes: int) -> Dataset:
    """Read a folder with `data.npz`, or with mosaics and `labels.npz`."""
    if (folder / "data.npz").is_file():
        return read_npz(name, folder / "data.npz", num_classes)
    labels = _arrays(folder / "labels.npz", ("train_labels", "test_labels"))
    if name not in TILES:
        raise DataError(f"{folder}: the mosaics of {name} have an unknown tile size; expected data.npz")
    train, test = (
        (_mosaics(folder, half, *TILES[name], len(labels[f"{half}_labels"])), labels[f"{half}_labels"])
        for half in ("train", "test")
    )
    return Dataset.from_arrays(name, train, test, num_classes)


def read_npz(name: str, path: Path, num_classes: int | None = None) -> Dataset:
    """Read a dataset from one `.npz` file."""
    found = _arrays(path, ARRAYS, OPTIONAL)
    train, test = ((found[f"{half}_images"], found[f"{half}_labels"]) for half in ("train", "test"))
    try:
        return Dataset.from_arrays(name, train, test, num_classes, *(_words(found, name) for name in OPTIONAL))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def write_npz(path: Path, dataset: Dataset) -> None:
    """Store a dataset; the file appears complete or not at all."""
    halves = {half: dataset.half(half) for half in HALVES}
    arrays = {f"{half}_images": images.permute(0, 2, 3, 1).numpy() for half, (images, _) in halves.items()}
    arrays |= {f"{half}_labels": labels.numpy() for half, (_, labels) in halves.items()}
    arrays |= {name: np.array(getattr(dataset, name)) for name in OPTIONAL if getattr(dataset, name)}
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def remember(folder: Path, dataset: Dataset) -> Dataset:
    """Store a decoded dataset as `data.npz`: decoding takes minutes, reading it again takes seconds."""
    with suppress(OSError):  # without the file, the next load is slower
        write_npz(folder / "data.npz", dataset)
    return dataset


def _words(arrays: dict[str, np.ndarray], name: str) -> tuple[str, ...]:
    """Return the words in an array; none if it does not hold words."""
    words = arrays.get(name, np.array([])).reshape(-1)
    if words.dtype.kind == "S":
        words = np.char.decode(words, "utf-8", "replace")
    return tuple(words.tolist()) if words.dtype.kind == "U" else ()


def _arrays(path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    remedy = f"save one with numpy.savez and the arrays {', '.join(names)}"
    with reading(path, remedy), path.open("rb") as opened:
        if not zipfile.is_zipfile(opened):
            raise DataError(f"{path} is not an .npz file, or is truncated; {remedy}")
        opened.seek(0)
        return _of_zip(path, np.load(opened, allow_pickle=False), names, optional)


def _of_zip(path: Path, file: NpzFile, names: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, np.ndarray]:
    with file:
        missing = [name for name in names if name not in file.files]
        if missing:
            raise DataError(f"{path} has no {', '.join(missing)}; expected the arrays {', '.join(names)}")
        arrays = {}
        for name in (*names, *(name for name in optional if name in file.files)):
            try:
                arrays[name] = file[name]
            except ValueError as error:  # e.g. Python objects, which could run code
                if name in names:
                    raise DataError(f"{path}: {name} cannot be read ({error}); save it as numbers") from error
        return arrays


def _mosaics(folder: Path, half: str, side: int, pitch: int, count: int) -> np.ndarray:
    from PIL import Image

    parts = []
    for path in sorted((*folder.glob(f"{half}-*.jpg"), *folder.glob(f"{half}-*.webp"))):
        with reading(path, "copy it again"), Image.open(path) as image:
            if image.width % pitch or image.height % pitch:
                raise DataError(f"{path} is {image.width}x{image.height}; expected whole tiles of {pitch}x{pitch}")
            pixels = np.asarray(image.convert("RGB"))
        tiles = pixels.reshape(-1, pitch, pixels.shape[1] // pitch, pitch, 3).swapaxes(1, 2)
        parts.append(tiles.reshape(-1, pitch, pitch, 3)[:, :side, :side])
    found = sum(map(len, parts))
    if found < count:
        raise DataError(f"{folder} has {count} {half} labels but only {found} images; is a mosaic missing?")
    return np.concatenate(parts)[:count]
