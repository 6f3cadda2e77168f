"""Blobs wherever fsspec reaches: buckets, other machines."""

import hashlib
import os
import re
import secrets
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from cdfl.server.blobs import SPOOL, Body, probe, unavailable
from cdfl.server.journal import StoreError, StoreUnavailable


class RemoteBlobs:
    """Blobs as objects of a bucket, or of any other file system fsspec knows. What was put is durable.

    Those that are not asynchronous inside (FTP) may have one connection for all threads: one at a time calls them.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.fs, root = self._connected()
        self._turn = nullcontext() if self.fs.async_impl else threading.RLock()
        self._is_doubtful = False
        self.place = self.root = root.rstrip("/")
        self._folder = _spool_folder(url)

    def make(self) -> None:
        """Make the folder of files that wait to be sent, and the root."""
        _make_private(self._folder)
        with self._unavailable():
            self.fs.makedirs(self.root, exist_ok=True)

    def spool(self) -> Path:
        """A path on a local disk."""
        return self._folder / secrets.token_hex(16)

    def adopt(self, spool: Path, name: str) -> None:
        """Send the file, then delete it here."""
        with self._unavailable():
            self.fs.put_file(str(spool), self._path(name))
            spool.unlink(missing_ok=True)

    def write(self, name: str, body: Body) -> None:
        """Send the bytes."""
        with self._unavailable():
            self.fs.pipe_file(self._path(name), body if isinstance(body, bytes) else b"".join(body))

    def copy(self, source: str, name: str) -> bool:
        """Let the other side copy the object, where it can."""
        with self._unavailable():
            try:
                self.fs.cp_file(self._path(source), self._path(name))
            except NotImplementedError:
                body = self.read(source)
                if body is None:
                    return False
                self.write(name, body)
            except FileNotFoundError:
                if self._is_there(source):
                    raise  # it is not that
                return False
            return True

    def settle(self) -> None:
        """An object has its name from the start."""

    def read(self, name: str) -> bytes | None:
        """Fetch an object."""
        with self._unavailable():
            try:
                return bytes(self.fs.cat_file(self._path(name)))
            except FileNotFoundError:
                if self._is_there(name):
                    raise  # it is not that
                return None

    def view(self, name: str) -> bytearray | None:
        """Fetch an object into memory that may be written to."""
        body = self.read(name)
        return None if body is None else bytearray(body)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        with self._unavailable():
            for name in names:
                try:
                    self.fs.rm_file(self._path(name))
                except Exception:  # not every file system has the same one for what is not there
                    if self._is_there(name):
                        raise

    def names(self) -> list[str]:
        """List all objects under our root."""
        with self._unavailable():
            self.fs.invalidate_cache()
            start = len(self._path(""))
            return [path[start:] for path in self.fs.find(self.root, maxdepth=1)]

    def empty_spool(self) -> None:
        """Nothing in there was ever promised to anybody."""
        with self._unavailable():
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)

    def check(self) -> None:
        """Ask whether the root can be looked at, and write something to the disk that uploads wait on."""
        with unavailable(self._folder):
            probe(self.spool())
        with self._unavailable():
            self._is_there(SPOOL)

    def _is_there(self, name: str) -> bool:
        """Is there such an object? Unlike `exists` this does not take a place that cannot be reached for a no."""
        try:
            self.fs.info(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    @contextmanager
    def _unavailable(self) -> Iterator[None]:
        with self._turn:
            try:
                if self._is_doubtful:
                    self.fs, _ = self._connected()
                    self._is_doubtful = False
                yield
            except StoreError:
                raise
            except Exception as error:  # every file system has errors of its own
                self._is_doubtful = True  # its connection may be dead
                raise StoreUnavailable(f"blobs in {self.root} cannot be reached now: {error}") from error

    def _connected(self) -> tuple[Any, str]:
        """A file system of our own, and the path in it."""
        import fsspec

        where = re.sub(r"//[^/@]*@", "//", self._url)  # without a password
        try:
            found: tuple[Any, str] = fsspec.core.url_to_fs(
                self._url, use_listings_cache=False, skip_instance_cache=True
            )
        except (ImportError, ValueError) as error:
            raise StoreError(f"blobs are to be kept in {where!r}: {error}") from None
        except Exception as error:
            raise StoreUnavailable(f"blobs in {where} cannot be reached now: {error}") from error
        return found


def _spool_folder(url: str) -> Path:
    """A local folder that the next start finds again, to empty it."""
    word = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"cdfl-spool-{os.getuid()}-{word}"


def _make_private(folder: Path) -> None:
    """Make a folder that nobody else can look into."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StoreError(f"{folder} is not a folder of ours alone; delete it, or set TMPDIR to another place")
