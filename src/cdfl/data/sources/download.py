"""Download files with published addresses and checksums. A file appears complete and checked, or not at all."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from cdfl.data.errors import DataError
from cdfl.data.sources.source import RemoteFile, Source


def md5_of(path: Path) -> str:
    """Return the MD5 sum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(source: Source, folder: Path, progress: bool = False) -> Iterator[Path]:
    """Download every file of a source into the folder, except those that are already there and intact."""
    if not source.files:
        raise DataError(f"{source.name} has no address to download from; put {source.by_hand} into {folder}")
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made ({error.strerror}); choose another one with --data-dir") from error
    try:
        for file in source.files:
            path = folder / file.name
            if not path.is_file() or md5_of(path) != file.md5:
                _download(source.name, file, folder, progress)
            yield path
    finally:
        for made in new:
            with suppress(OSError):  # not empty: keep the files that came before a failure
                made.rmdir()


def _download(name: str, file: RemoteFile, folder: Path, progress: bool) -> None:
    try:
        import pooch
    except ImportError as error:
        raise DataError("downloads need pooch; run `pip install 'cdfl[sim]'`") from error
    pooch.get_logger().setLevel("ERROR")  # we report errors ourselves
    failures = []
    for url in file.urls:
        try:
            # pooch writes to a temporary file, compares the checksum and only then moves it into place.
            downloader = pooch.HTTPDownloader(progressbar=progress and find_spec("tqdm") is not None, timeout=60)
            pooch.retrieve(url, f"md5:{file.md5}", fname=file.name, path=folder, downloader=downloader)
        except ValueError:
            failures.append(f"{url} did not return the published bytes (MD5 {file.md5}): truncated or changed")
        except OSError as error:  # includes the errors of requests
            failures.append(f"{url} cannot be read ({type(error).__name__})")
        else:
            return
    raise DataError(f"{name}: {'; '.join(failures)}. Nothing was kept; try again, or put {file.name} into {folder}")
