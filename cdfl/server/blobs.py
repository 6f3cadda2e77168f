"""Large values under names that are never used twice, and a folder of them; `remote` keeps them elsewhere.

A blob is complete and durable before the database speaks of it, and is deleted only after the database no longer does.
So a crash leaves at most blobs that nobody speaks of; they are swept at the next start.
"""

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


class Blobs(Protocol):
    """Where blobs are kept, all in one place: a name is a kind and 32 random digits, as `new_name` makes it."""

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

    def settle(self) -> None:
        """Make durable that all blobs of so far have the names they have."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content of a blob; None: there is none of this name."""
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


def new_name(kind: str) -> str:
    """A name that no blob has or had."""
    return f"{kind}-{secrets.token_hex(16)}"


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
