"""The description of a published dataset, and the error for files that cannot be read."""

import csv
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from struct import error as StructError
from tarfile import TarError
from typing import Any, Literal

from cdfl.data.errors import DataError


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: the same bytes at each of its addresses."""

    name: str
    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True)
class Source:
    """A published dataset: what it is, where it comes from, and how to read it."""

    name: str
    summary: str
    num_train: int  # samples; of a dataset without halves, all of them
    num_test: int
    num_classes: int  # 0 if there are none
    read: Callable[[Path], Any]  # from the folder that holds its files: a Dataset of images; see `kind`
    published: str  # where the addresses and checksums, or the files, are published
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""  # what to put into the folder, if there is no download
    other_folders: tuple[str, ...] = ()  # other names of its folder
    bundled: str = ""  # the library that it comes with: needs no folder
    # What `read` gives: a Dataset, a folder of texts, the columns of a table, or series by name.
    kind: Literal["images", "texts", "table", "series"] = "images"

    @property
    def is_installed(self) -> bool:
        """Whether the library that it comes with is installed."""
        module = {"scikit-learn": "sklearn"}.get(self.bundled, self.bundled)
        try:
            return bool(module) and find_spec(module) is not None
        except ValueError:  # a module that was replaced by None
            return False


BROKEN = (EOFError, zlib.error, TarError, zipfile.BadZipFile, csv.Error, ValueError, SyntaxError, StructError, OSError)
FETCH_AGAIN = "delete it and fetch it again"  # the remedy for a downloaded file


@contextmanager
def reading(path: Path | str, remedy: str) -> Iterator[None]:
    """Turn exceptions from reading one file into a DataError; `remedy` says what to do about broken content."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; `cdfl data list` shows what each dataset needs") from error
    except BROKEN as error:
        if isinstance(error, OSError) and error.strerror:  # from the system, not from a decoder
            who = "; check who may read it" if isinstance(error, PermissionError) else ""
            raise DataError(f"{error.filename or path} cannot be read: {error.strerror}{who}") from error
        raise DataError(f"{path} is truncated or corrupted ({error or type(error).__name__}); {remedy}") from error
