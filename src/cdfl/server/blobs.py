"""Large values under names that are never used twice, and a folder of them; `remote` keeps them elsewhere.

A blob is complete and durable before the database speaks of it, and is deleted only after the database no longer does.
So a crash leaves at most blobs that nobody speaks of; they are swept at the next start.
"""

import errno
import hashlib
import mmap
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from cdfl.server.journal import StoreUnavailable

Body = bytes | Sequence[bytes | memoryview]  # one piece, or several that follow each other

SPOOL = "spool"
PROBE = 2**16  # bytes that must fit for a disk not to be called full
MOST_PIECES = 512  # that one call of writev takes on any system
NO_LINKS = (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # a file system has none, or few


class Blobs(Protocol):
    """Where blobs are kept, all in one place, under names as `new_name` makes them."""

    place: str  # in words

    def make(self) -> None:
        """Make the place where it is not there yet; before that, nothing is made and all that is read is missing."""
        ...

    def spool(self) -> Path:
        """A path, not in use, for a file that may become a blob."""
        ...

    def adopt(self, spool: Path, name: str) -> None:
        """Make a spooled file a blob; its content is durable."""
        ...

    def write(self, name: str, body: Body) -> None:
        """Make bytes a blob; its content is durable."""
        ...

    def copy(self, source: str, name: str) -> bool:
        """Make a blob that holds what another one does, durable as that is; False: there is no other one."""
        ...

    def settle(self) -> None:
        """Make durable that all blobs of so far have the names they have."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content of a blob; None: there is none of this name."""
        ...

    def view(self, name: str) -> bytearray | mmap.mmap | None:
        """The same for large ones: memory of its own that need not be copied, of a file where there is one."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete blobs; those that do not exist are deleted already."""
        ...

    def names(self) -> list[str]:
        """All blobs."""
        ...

    def empty_spool(self) -> None:
        """Delete what was spooled and never became a blob."""
        ...

    def check(self) -> None:
        """Raise StoreUnavailable where nothing can be written."""
        ...


def new_name(kind: str, digest: str = "") -> str:
    """A name that no blob has or had: a kind and 32 random digits; with a digest, it says what the blob must hold."""
    return "-".join(filter(None, (kind, secrets.token_hex(16), digest)))


def digest_in(name: str) -> str | None:
    """The sha256 that a name speaks of, if it does.

    >>> digest_in(new_name("reply", digest_of(b"a model")))[:8], digest_in(new_name("reply"))
    ('97ff8a35', None)
    """
    parts = name.split("-")
    return parts[2] if len(parts) == 3 else None


def digest_of(body: "Body | bytearray | mmap.mmap") -> str:
    """The sha256 of a body, in hex."""
    digest = hashlib.sha256()
    for piece in [body] if isinstance(body, bytes | bytearray | mmap.mmap) else body:
        digest.update(piece)
    return digest.hexdigest()


class FolderBlobs:
    """Blobs as files of a folder: written beside, synced, renamed, and the folder synced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.place = str(self.folder)

    def make(self) -> None:
        """Make the folder, and the one for what is being written."""
        with unavailable(self.folder):
            _make(self.folder / SPOOL)

    def spool(self) -> Path:
        """A path in the same file system, so that a rename is enough."""
        return self.folder / SPOOL / secrets.token_hex(16)

    def adopt(self, spool: Path, name: str) -> None:
        """Sync the file and give it its name; whatever it was, nobody else can read it now."""
        with unavailable(self.folder):
            spool.chmod(0o600)
            sync(spool)
            spool.replace(self.folder / name)

    def write(self, name: str, body: Body) -> None:
        """Write beside, sync, rename; a failure leaves nothing."""
        spool = self.spool()
        with unavailable(self.folder):
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
        """Link the file: no byte of it is copied, where the file system can do that."""
        with unavailable(self.folder):
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

    def settle(self) -> None:
        """Sync the folder: once, however many blobs it got."""
        with unavailable(self.folder):
            sync(self.folder)

    def read(self, name: str) -> bytes | None:
        """Read the whole file."""
        with unavailable(self.folder):
            try:
                return (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def view(self, name: str) -> bytearray | mmap.mmap | None:
        """Map the file; it may be deleted meanwhile."""
        with unavailable(self.folder):
            try:
                with (self.folder / name).open("rb") as file:
                    is_empty = not file.seek(0, 2)
                    return bytearray() if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except FileNotFoundError:
                return None

    def delete(self, names: Iterable[str]) -> None:
        """Unlink."""
        with unavailable(self.folder):
            for name in names:
                (self.folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Every file of the folder."""
        with unavailable(self.folder):
            return [path.name for path in self.folder.iterdir() if path.name != SPOOL]

    def empty_spool(self) -> None:
        """Nothing in there was ever promised to anybody."""
        with unavailable(self.folder):
            for path in (self.folder / SPOOL).iterdir():
                path.unlink(missing_ok=True)

    def check(self) -> None:
        """Write something: nothing else tells whether the disk is full."""
        with unavailable(self.folder):
            probe(self.spool())


def probe(path: Path) -> None:
    """Write something that is gone again: an OSError if the disk is full or read-only."""
    try:
        path.write_bytes(bytes(PROBE))
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _make(folder: Path) -> None:
    """Make a folder whose own name is durable as well."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's names, durable."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _write_all(file: int, body: Body) -> None:
    pieces = [memoryview(piece).cast("B") for piece in ([body] if isinstance(body, bytes) else body)]
    while pieces:
        written = os.writev(file, pieces[:MOST_PIECES])
        while pieces and written >= len(pieces[0]):
            written -= len(pieces.pop(0))
        if pieces:
            pieces[0] = pieces[0][written:]


@contextmanager
def unavailable(folder: Path) -> Iterator[None]:
    """Errors of a disk as errors of the store."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"the folder {folder} cannot be used now: {error}") from error
