"""Blobs: models as immutable files or objects, under names that are never used twice.

A blob is complete and durable before the database references it, and is deleted after the database no longer does. So
a crash leaves at most unreferenced blobs; the next start deletes them.
"""

import errno
import hashlib
import math
import mmap
import os
import re
import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from cdfl.server.store_errors import StoreError, StoreUnavailable

Body = bytes | Sequence[bytes | memoryview]  # one piece, or several that follow each other

SPOOL = "spool"
PROBE = 2**16  # bytes that `check` writes, to notice a full disk
MAX_PIECES = 512  # one call of writev takes this many on any system
NO_LINKS = (
    errno.EPERM,
    errno.EMLINK,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
)  # hard links are not supported, or the file has too many
OURS = re.compile(r"(upload|base|reply|sent|snapshot|router)-[0-9a-f]{32}-[0-9a-f]{64}")


class Blobs(Protocol):
    """A place for blobs, under names from `new_name`."""

    place: str  # for messages

    def make(self) -> None:
        """Create the place if needed."""
        ...

    def spool(self) -> Path:
        """Return an unused path for a file that may become a blob."""
        ...

    def move_in(self, spool: Path, name: str) -> None:
        """Turn a spooled file into a blob, with durable content."""
        ...

    def write(self, name: str, body: Body) -> None:
        """Write a blob, with durable content."""
        ...

    def copy(self, source: str, name: str) -> bool:
        """Copy a blob; return whether the source exists."""
        ...

    def sync_folder(self) -> None:
        """Make the names of all blobs durable."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a blob; None if it does not exist."""
        ...

    def view(self, name: str) -> bytearray | mmap.mmap | None:
        """Return the content in writable memory, mapped where possible; None if it does not exist."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete blobs; missing ones are skipped."""
        ...

    def names(self) -> list[str]:
        """Return the names of all blobs."""
        ...

    def empty_spool(self, seconds: float = -math.inf) -> None:
        """Delete spooled files that never became blobs, and to which nothing was written for so many seconds."""
        ...

    def check(self) -> None:
        """Raise StoreUnavailable if nothing can be written."""
        ...


def open_blobs(where: str | Path) -> Blobs:
    """Return blobs in a folder or, for an fsspec URL, elsewhere."""
    scheme, found, path = str(where).partition("://")
    if not found:
        return FolderBlobs(Path(where))
    return FolderBlobs(Path(path)) if scheme in ("file", "local") else RemoteBlobs(str(where))


def new_name(kind: str, digest: str) -> str:
    """Return a new name: a kind, 32 random digits and the sha256 of the content."""
    return f"{kind}-{secrets.token_hex(16)}-{digest}"


def digest_in(name: str) -> str:
    """Return the sha256 in a name.

    >>> digest_in(new_name("reply", digest_of(b"a model")))[:8]
    '97ff8a35'
    """
    return name.rpartition("-")[2]


def digest_of(body: "Body | bytearray | mmap.mmap") -> str:
    """Return the sha256 of a body, in hex."""
    digest = hashlib.sha256()
    for piece in [body] if isinstance(body, bytes | bytearray | mmap.mmap) else body:
        digest.update(piece)
    return digest.hexdigest()


class FolderBlobs:
    """Blobs as files in a folder. A file is written to the spool, synced and renamed; then the folder is synced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.place = str(self.folder)

    def make(self) -> None:
        """Create the folder and its spool."""
        with _unavailable(self.folder):
            _make(self.folder / SPOOL)

    def spool(self) -> Path:
        """Return a path in the same file system, so that a rename is enough."""
        return self.folder / SPOOL / secrets.token_hex(16)

    def move_in(self, spool: Path, name: str) -> None:
        """Make the file private, sync it, and rename it."""
        with _unavailable(self.folder):
            spool.chmod(0o600)
            sync(spool)
            spool.replace(self.folder / name)

    def write(self, name: str, body: Body) -> None:
        """Write to the spool, sync, rename; a failure leaves nothing."""
        spool = self.spool()
        with _unavailable(self.folder):
            try:
                file = os.open(spool, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    _write_all(file, body)
                    os.fsync(file)
                finally:
                    os.close(file)
                spool.replace(self.folder / name)
            except BaseException:
                with suppress(OSError):
                    spool.unlink(missing_ok=True)
                raise

    def copy(self, source: str, name: str) -> bool:
        """Link the file, or copy it if the file system has no hard links."""
        with _unavailable(self.folder):
            try:
                os.link(self.folder / source, self.folder / name)
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                body = self.read(source)
                if body is None:
                    return False
                self.write(name, body)
            return True

    def sync_folder(self) -> None:
        """Sync the folder."""
        with _unavailable(self.folder):
            sync(self.folder)

    def read(self, name: str) -> bytes | None:
        """Read the whole file."""
        with _unavailable(self.folder):
            try:
                return (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def view(self, name: str) -> bytearray | mmap.mmap | None:
        """Map the file; it stays readable if it is deleted meanwhile."""
        with _unavailable(self.folder):
            try:
                with (self.folder / name).open("rb") as file:
                    is_empty = not file.seek(0, 2)
                    return bytearray() if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except FileNotFoundError:
                return None

    def delete(self, names: Iterable[str]) -> None:
        """Unlink the files."""
        with _unavailable(self.folder):
            for name in names:
                (self.folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """List the folder."""
        with _unavailable(self.folder):
            return [path.name for path in self.folder.iterdir() if path.name != SPOOL]

    def empty_spool(self, seconds: float = -math.inf) -> None:
        """Unlink files of the spool."""
        with _unavailable(self.folder):
            _unlink_old(self.folder / SPOOL, seconds)

    def check(self) -> None:
        """Write and delete a file, to notice a full disk."""
        with _unavailable(self.folder):
            _probe(self.spool())


class RemoteBlobs:
    """Blobs as objects of a bucket, or of any other file system that fsspec knows. A write returns once it is durable.

    A file system that is not asynchronous inside (FTP) may have one connection for all threads, so calls take turns.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.fs, root = self._connected()
        self._turn = nullcontext() if self.fs.async_impl else threading.RLock()
        self._needs_reconnect = False
        self.place = self.root = root.rstrip("/")
        self._folder = _spool_folder(url)

    def make(self) -> None:
        """Create the local spool and the root."""
        _make_private(self._folder)
        with self._unavailable():
            self.fs.makedirs(self.root, exist_ok=True)

    def spool(self) -> Path:
        """Return a path on a local disk."""
        return self._folder / secrets.token_hex(16)

    def move_in(self, spool: Path, name: str) -> None:
        """Send the file, then delete the local one."""
        with self._unavailable():
            self.fs.put_file(str(spool), self._path(name))
            spool.unlink(missing_ok=True)

    def write(self, name: str, body: Body) -> None:
        """Send the bytes."""
        with self._unavailable():
            self.fs.pipe_file(self._path(name), body if isinstance(body, bytes) else b"".join(body))

    def copy(self, source: str, name: str) -> bool:
        """Copy the object on the remote side if possible, otherwise through this machine."""
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
                    raise  # the error is about something else
                return False
            return True

    def sync_folder(self) -> None:
        """Do nothing: the name of an object is durable when it is written."""

    def read(self, name: str) -> bytes | None:
        """Fetch an object."""
        with self._unavailable():
            try:
                return bytes(self.fs.cat_file(self._path(name)))
            except FileNotFoundError:
                if self._is_there(name):
                    raise  # the error is about something else
                return None

    def view(self, name: str) -> bytearray | None:
        """Fetch an object into writable memory."""
        body = self.read(name)
        return None if body is None else bytearray(body)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        with self._unavailable():
            for name in names:
                try:
                    self.fs.rm_file(self._path(name))
                except Exception:  # file systems differ in their error for a missing object
                    if self._is_there(name):
                        raise

    def names(self) -> list[str]:
        """List all objects under the root."""
        with self._unavailable():
            self.fs.invalidate_cache()
            start = len(self._path(""))
            return [path[start:] for path in self.fs.find(self.root, maxdepth=1)]

    def empty_spool(self, seconds: float = -math.inf) -> None:
        """Unlink files of the spool."""
        with self._unavailable():
            _unlink_old(self._folder, seconds)

    def check(self) -> None:
        """Check that the root can be reached and that the local spool can be written."""
        with _unavailable(self._folder):
            _probe(self.spool())
        with self._unavailable():
            self._is_there(SPOOL)

    def _is_there(self, name: str) -> bool:
        """Return whether an object exists; unlike fsspec's `exists`, raise if the place cannot be reached."""
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
                if self._needs_reconnect:
                    self.fs, _ = self._connected()
                    self._needs_reconnect = False
                yield
            except StoreError:
                raise
            except Exception as error:  # file systems raise errors of many kinds
                self._needs_reconnect = True  # its connection may be dead
                raise StoreUnavailable(f"blobs in {self.root} cannot be reached now: {error}") from error

    def _connected(self) -> tuple[Any, str]:
        """Return a new connection to the file system, and the path in it."""
        import fsspec

        where = re.sub(r"//[^/@]*@", "//", self._url)  # without a password
        try:
            found: tuple[Any, str] = fsspec.core.url_to_fs(
                self._url, use_listings_cache=False, skip_instance_cache=True
            )
        except (ImportError, ValueError) as error:
            raise StoreError(
                f"blobs cannot be kept in {where!r}: {error}; expected a folder or an fsspec URL (--blobs)"
            ) from None
        except Exception as error:
            raise StoreUnavailable(f"blobs in {where} cannot be reached now: {error}") from error
        return found


def _spool_folder(url: str) -> Path:
    """Return a local folder with a fixed name, so that the next start can empty it."""
    word = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"cdfl-spool-{os.getuid()}-{word}"


def _make_private(folder: Path) -> None:
    """Create a folder that other users cannot read."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StoreError(f"{folder} is not a private folder of this user; delete it, or set TMPDIR to another place")


def _unlink_old(folder: Path, seconds: float) -> None:
    """Unlink the files in a folder to which nothing was written for so many seconds."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime >= seconds:
                path.unlink()


def _probe(path: Path) -> None:
    """Write a file and delete it; OSError if the disk is full or read-only."""
    try:
        path.write_bytes(bytes(PROBE))
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _make(folder: Path) -> None:
    """Create a folder and make its name durable."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _write_all(file: int, body: Body) -> None:
    pieces = [memoryview(piece).cast("B") for piece in ([body] if isinstance(body, bytes) else body)]
    while pieces:
        written = os.writev(file, pieces[:MAX_PIECES])
        while pieces and written >= len(pieces[0]):
            written -= len(pieces.pop(0))
        if pieces:
            pieces[0] = pieces[0][written:]


@contextmanager
def _unavailable(folder: Path) -> Iterator[None]:
    """Turn errors of a disk into errors of the store."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"the folder {folder} cannot be used now: {error}") from error
