"""Copy a store while its server runs: a moment of the database, and the blobs that it refers to.

Blobs have names that are never used twice, so a copy of one stays right. A running server deletes blobs that it no
longer needs; if one is gone before it was copied, the database is copied again, and only new blobs are left to do.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import select

from cdfl.server import queries, tables
from cdfl.server.blobs import OURS, sync
from cdfl.server.database import Database
from cdfl.server.database_engine import database_url
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreError
from cdfl.server.store_reader import check_digest

ROUNDS = 10  # copies of the database until all blobs are there
ROWS = 500  # copied at once


@dataclass(frozen=True)
class Copied:
    """What a backup holds."""

    epoch: int
    entries: int
    blobs: int


def backup(store: Store, folder: Path, progress: Callable[[int, int], None] | None = None) -> Copied:
    """Write a store with SQLite and files to a new or empty folder. It can be verified and served like any other."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not an empty folder; name a new one for the backup")
    blobs = folder / "blobs"
    blobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for _ in range(ROUNDS):
        copied, needed = _copy_database(store, folder)
        if _copy_blobs(store, blobs, needed, progress or (lambda done, total: None)):
            for extra in {path.name for path in blobs.iterdir()} - needed:
                (blobs / extra).unlink()
            (blobs / "spool").mkdir(mode=0o700, exist_ok=True)
            sync(blobs)
            sync(folder)
            return copied
    raise StoreError("the server deletes blobs faster than they can be copied; try again, or stop the server")


def _copy_database(store: Store, folder: Path) -> tuple[Copied, set[str]]:
    """Copy all tables as of one moment; return what they hold and the blobs that they name."""
    for path in folder.glob("store.db*"):
        path.unlink()
    copy = Database(database_url(folder), own=True)
    try:
        with store.moment() as source, copy.write() as target:
            for table in tables.TABLES.sorted_tables:
                target.execute(sa.delete(table))
                for rows in source.execute(select(table)).mappings().partitions(ROWS):
                    target.execute(sa.insert(table), [dict(row) for row in rows])
        with copy.read() as connection:
            sign = tables.get(connection, "blobs")
            names = queries.all_blobs(connection) | ({sign} if sign else set())
            copied = Copied(queries.last_epoch(connection) or 0, queries.count_entries(connection), len(names))
        copy.clean()
    finally:
        copy.close()
    return copied, names


def _copy_blobs(store: Store, folder: Path, names: set[str], progress: Callable[[int, int], None]) -> bool:
    """Copy the blobs that are not there yet; return whether all could be copied."""
    for done, name in enumerate(sorted(names), start=1):
        path = folder / name
        if not path.exists():
            data = store.blobs.read(name)
            if data is None:
                return False
            if OURS.fullmatch(name):
                check_digest(name, data)
            _write(path, data)
        progress(done, len(names))
    return True


def _write(path: Path, data: bytes) -> None:
    begun = path.with_suffix(".new")
    file = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    begun.replace(path)
