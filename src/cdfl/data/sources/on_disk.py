"""Find, read, fetch and check datasets in the data folder."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from cdfl.argument_checks import did_you_mean
from cdfl.data.errors import DataError
from cdfl.data.sources.catalogue import SOURCES
from cdfl.data.sources.download import download, md5_of
from cdfl.data.sources.image_folders import read_folder
from cdfl.data.sources.npz_and_mosaics import has_npz, read_npz, read_npz_folder
from cdfl.data.sources.source import Source
from cdfl.data.tables import read_csv

OTHERS = {  # kinds of files that users try
    ".txt": "its folder: each NAME.txt there is a cluster",
    **dict.fromkeys((".tsv", ".xls", ".xlsx", ".parquet"), "a .csv file, or in Python a pandas DataFrame"),
}
Verdict = Literal["ok", "differs from what was published", "not here"]


@dataclass(frozen=True)
class Report:
    """The result of `check` for one dataset."""

    name: str
    folder: Path | None
    verdict: Verdict
    lines: tuple[str, ...]


def data_folder(data_dir: Path | str | None = None) -> Path:
    """Return the folder of the datasets: `data_dir`, else `CDFL_DATA`, else the user's cache folder."""
    if data_dir is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
        data_dir = os.environ.get("CDFL_DATA") or cache / "cdfl"
    return Path(data_dir).expanduser()


def load_source(source: str, data_dir: Path | str | None = None) -> Any:
    """Read a dataset, given as a name of `SOURCES` or as a path.

    Images, in an `.npz` file or a folder of class folders, give a `Dataset`; a `.csv` file gives its columns, a folder
    with texts the folder.

    >>> load_source("digits").num_classes
    10
    """
    if source in SOURCES:
        return _read(SOURCES[source], data_folder(data_dir))
    path = Path(source).expanduser()
    if not path.exists() and (path.suffix or len(path.parts) > 1):
        raise DataError(f"there is no file or folder {source}; this process runs in {Path.cwd()}")
    if not path.exists():
        raise DataError(
            f"there is no dataset {source!r}; expected one of {', '.join(SOURCES)}, "
            f"an .npz or .csv file, or a folder of class folders or texts{did_you_mean(source, SOURCES)}"
        )
    if path.suffix.lower() == ".csv":
        return read_csv(path)
    if path.is_dir():
        return path if next(path.rglob("*.txt"), None) else read_folder(path.name, path)
    if path.suffix in OTHERS:
        raise DataError(f"{source} is a {path.suffix} file; expected {OTHERS[path.suffix]}")
    return read_npz(path.stem, path)


def check_is_here(name: str, data_dir: Path | str | None = None) -> None:
    """Raise DataError if a published dataset is not in the data folder; nothing is read."""
    source = _named(name)
    if not source.bundled:
        _folder(source, data_folder(data_dir))


def fetch(name: str, data_dir: Path | str | None = None, progress: bool = False) -> Path | None:
    """Download a dataset and return its folder (None for one that comes with a library)."""
    source = _named(name)
    if source.bundled:
        return None
    folder = data_folder(data_dir) / name
    list(download(source, folder, progress))
    return folder


def check(name: str, data_dir: Path | str | None = None) -> Report:
    """Read a dataset, and compare checksums, numbers of images and classes with the published ones."""
    source = _named(name)
    folder = None if source.bundled else find_folder(source, data_folder(data_dir))
    try:
        dataset = _read(source, data_folder(data_dir))
    except DataError as error:
        here = source.bundled or folder is not None
        return Report(name, folder, "differs from what was published" if here else "not here", (str(error),))
    if source.kind != "images":
        return Report(name, folder, "ok", (_described(source, dataset),))
    problems = [] if folder is None else _wrong_checksums(source, folder)
    lines = []
    for half, expected in (("train", source.num_train), ("test", source.num_test)):
        labels = dataset.train_targets if half == "train" else dataset.test_targets
        sizes = torch.bincount(labels, minlength=dataset.num_classes or 0)
        lines.append(f"{len(labels):,} {half} images, {int(sizes.min()):,} to {int(sizes.max()):,} in a class")
        if len(labels) != expected:
            problems.append(f"{expected:,} {half} images were published, {len(labels):,} are here")
        if not sizes.min():
            problems.append(f"class {int(sizes.argmin())} has no {half} image")
    return Report(name, folder, "differs from what was published" if problems else "ok", (*lines, *problems))


def _described(source: Source, found: Any) -> str:
    if source.kind == "texts":
        return f"{len(list(found.rglob('*.txt')))} texts"
    if source.kind == "table":
        return f"{len(next(iter(found.values())))} rows, {len(found)} columns: {', '.join(found)}"
    return ", ".join(f"{len(rows):,} series {name!r}" for name, rows in found.items())


def find_folder(source: Source, root: Path) -> Path | None:
    """Return the folder of a dataset under one of its names, if it is not empty."""
    folders = (root / name for name in (source.name, *source.other_folders))
    return next((folder for folder in folders if folder.is_dir() and any(folder.iterdir())), None)


def _named(name: str) -> Source:
    if name not in SOURCES:
        there = f"expected one of {', '.join(SOURCES)}{did_you_mean(name, SOURCES)}"
        raise DataError(f"there is no dataset {name!r}; {there}")
    return SOURCES[name]


def _read(source: Source, root: Path) -> Any:
    if source.bundled:
        if not source.is_installed:
            extra = "'cdfl[sim]'" if source.bundled == "scikit-learn" else source.bundled
            raise ModuleNotFoundError(f"the dataset {source.name} comes with {source.bundled}: pip install {extra}")
        return source.read(root)
    folder = _folder(source, root)
    if source.kind == "images" and has_npz(folder):
        return read_npz_folder(source.name, folder, source.num_classes)
    return source.read(folder)


def _folder(source: Source, root: Path) -> Path:
    folder = find_folder(source, root)
    if folder is None:
        where = "" if root == data_folder() else f" --data-dir {root}"
        fetch_it = f"run `cdfl data fetch {source.name}{where}`, or fill"
        how = f"put {source.by_hand} into" if source.by_hand else fetch_it
        gone = "" if root.is_dir() else ", and there is no such folder"
        raise DataError(f"{source.name} is not in {root}{gone}; {how} {root / source.name}")
    return folder


def _wrong_checksums(source: Source, folder: Path) -> list[str]:
    """Return a line for each file that differs from the published one; folders with .npz files have none of those."""
    return [
        f"{file.name} is readable, but its MD5 is not the published {file.md5}; fetch it again to be sure"
        for file in source.files
        if (folder / file.name).is_file() and md5_of(folder / file.name) != file.md5
    ]
