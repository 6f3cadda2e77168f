"""Where a store is, and whether its two parts, database and blobs, belong together."""

import re
from pathlib import Path

from cdfl.server import rows, schema
from cdfl.server.blobs import Blobs, FolderBlobs, new_name
from cdfl.server.database import Database, parse_url
from cdfl.server.journal import StoreError
from cdfl.server.remote import RemoteBlobs

# Blobs that may be swept: nobody else's.
OURS = re.compile(r"(upload|base|reply|given|snapshot)-[0-9a-f]{32}(-[0-9a-f]{64})?")
SIGN = "store-"  # a blob of this kind says whose the others are


def database_url(place: str | Path) -> str:
    """The URL of a store's database: as it is, or that of the SQLite file in a folder."""
    return str(place) if "://" in str(place) else f"sqlite:///{Path(place).absolute() / 'store.db'}"


def blobs_place(database: str | Path, blobs: str | Path | None) -> str | Path:
    """Where a store's blobs are: in its folder, unless said otherwise."""
    if blobs is not None:
        return blobs
    if "://" in str(database):
        raise StoreError(
            "a URL of a database needs a place for the blobs as well (--blobs): a folder, or an fsspec URL"
        )
    return Path(database) / "blobs"


def open_blobs(where: str | Path) -> Blobs:
    """Blobs in a folder or under an fsspec URL, by what `where` looks like."""
    scheme, found, path = str(where).partition("://")
    if not found:
        return FolderBlobs(Path(where))
    return FolderBlobs(Path(path)) if scheme in ("file", "local") else RemoteBlobs(str(where))


def shown(place: str | Path) -> str:
    """A place as it may be shown: without a password."""
    return parse_url(str(place)).render_as_string(hide_password=True) if "://" in str(place) else str(place)


def check_blobs(database: Database, blobs: Blobs) -> None:
    """Refuse a place that does not hold the blobs of a store which was begun. Nothing is changed or made."""
    with database.read() as connection:
        begun, name = rows.last_epoch(connection) is not None, schema.get(connection, "blobs")
    if begun and (name is None or blobs.read(name) is None):
        raise StoreError(
            f"the blobs of this store are not in {blobs.place}; name the place they are in (--blobs), or mount its disk"
        )


def claim(database: Database, blobs: Blobs) -> None:
    """Make sure that blobs and database belong together: others' would be swept, and ours not be found."""
    check_blobs(database, blobs)
    blobs.make()
    with database.write() as connection:
        name = schema.get(connection, "blobs")
        if name is None:
            name = new_name(SIGN.rstrip("-"))
            schema.put(connection, "blobs", name)
    if blobs.read(name) is not None:
        return
    if any(other.startswith(SIGN) for other in blobs.names()):
        raise StoreError("the place for the blobs holds those of another store; give every store a place of its own")
    blobs.write(name, b"The blobs here belong to the store that knows this name.\n")
    blobs.settle()


def sweep(database: Database, blobs: Blobs) -> None:
    """Delete what a crash has left: blobs that were about to be needed, or no longer were, when it happened."""
    blobs.empty_spool()
    with database.read() as connection:
        known = rows.all_blobs(connection)
    blobs.delete(name for name in blobs.names() if OURS.fullmatch(name) and name not in known)
