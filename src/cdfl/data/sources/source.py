"""What is known about a published dataset, and the one way in which reading it fails."""

import csv
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import error as StructError
from tarfile import TarError

from cdfl.data.dataset import Dataset
from cdfl.data.errors import DataError


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: the same bytes at each of its addresses."""

    name: str
    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True)
class Source:
    """A dataset: what it is, where it comes from, how it is read."""

    name: str
    summary: str
    num_train: int
    num_test: int
    num_classes: int
    read: Callable[[Path], Dataset]  # from the folder that holds its files
    published: str  # who publishes the addresses and checksums below, or the files
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""  # what to put into the folder, where there is nothing to download from
    other_folders: tuple[str, ...] = ()  # further names under which its folder is found
    bundled: bool = False  # comes with a library: needs no folder


BROKEN = (EOFError, zlib.error, TarError, zipfile.BadZipFile, csv.Error, ValueError, SyntaxError, StructError, OSError)
FETCH_AGAIN = "delete it and fetch it again"  # what to do about a file that `cdfl data fetch` brings


@contextmanager
def reading(path: Path | str, remedy: str) -> Iterator[None]:
    """Turn what readers throw at one file into one sentence, with what to do where its content is broken."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; `cdfl data list` shows what each dataset needs") from error
    except BROKEN as error:
        if isinstance(error, OSError) and error.strerror:  # the system's, and not what a decoder says of the content
            who = "; check who may read it" if isinstance(error, PermissionError) else ""
            raise DataError(f"{error.filename or path} cannot be read: {error.strerror}{who}") from error
        raise DataError(f"{path} is truncated or corrupted ({error or type(error).__name__}); {remedy}") from error
