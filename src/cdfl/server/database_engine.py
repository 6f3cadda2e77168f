"""Engines for the two databases, SQLite and PostgreSQL: their URLs, their timeouts, and their errors as the store's."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    InterfaceError,
    InternalError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from cdfl.server.store_errors import StoreDamaged, StoreError, StoreUnavailable

# sqlite3's own error is raised while a connection is set up.
AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeout, sqlite3.OperationalError)
SQLITE = ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON")
POOL = 16
WAIT_FOR_WRITERS = 5  # SQLite waits this many seconds for the transaction of another process (`cdfl token`)
LOCK_SECONDS = 5  # limit for locks of other programs on PostgreSQL; cdfl holds its own for moments
STATEMENT_SECONDS = 30  # limit for a statement on PostgreSQL, without COMMIT
LEASE_SECONDS = 10  # a silent owner among several front ends loses its connection, and with it the lock


def parse_url(text: str) -> URL:
    """Return the URL of a SQLite or PostgreSQL database.

    >>> parse_url("postgresql://me@db/cdfl").drivername
    'postgresql+psycopg'
    """
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError):
        scheme = text.partition("://")[0]  # the rest may contain a password
        raise StoreError(
            f"the database is {scheme!r}://...; expected sqlite:///FILE or postgresql://USER@HOST/NAME"
        ) from None
    except ValueError:
        raise StoreError("the port in the URL of the database (--store) is not a number; expected HOST:5432") from None
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreError(f"the database is a {backend} one; expected sqlite:///FILE or postgresql://USER@HOST/NAME")
    if not url.database or url.database == ":memory:":
        raise StoreError("an SQLite database in memory would lose everything; expected sqlite:///FILE")
    return url.set(drivername="sqlite", database=str(Path(url.database).absolute()))


def database_url(place: str | Path) -> str:
    """Return the URL of a store's database: `place` itself, or the SQLite file in that folder."""
    return str(place) if "://" in str(place) else f"sqlite:///{Path(place).absolute() / 'store.db'}"


def without_password(place: str | Path) -> str:
    """Return the place of a store as it may be printed."""
    return parse_url(str(place)).render_as_string(hide_password=True) if "://" in str(place) else str(place)


def make_engine(url: URL) -> sa.Engine:
    """Make an engine in autocommit mode: transactions are written out as BEGIN and COMMIT."""
    shared: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "pool_size": POOL, "max_overflow": POOL}
    if url.get_backend_name() != "sqlite":
        options = f"{_POSTGRES['options']} {url.query.get('options', '')}"
        arguments = _POSTGRES | dict(url.query) | {"options": options}  # the URL's own arguments win
        return sa.create_engine(url, pool_pre_ping=True, connect_args=arguments, **shared)
    engine = sa.create_engine(url, connect_args={"timeout": WAIT_FOR_WRITERS}, **shared)
    event.listen(engine, "connect", _set_up_sqlite)
    return engine


def make_file(path: Path) -> None:
    """Create the file of an SQLite database, private to this user; SQLite's other files get the same mode."""
    with translated():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _set_up_sqlite(connection: Any, _: object) -> None:
    for pragma in SQLITE:
        connection.execute(f"PRAGMA {pragma}").close()


# Both ends notice a dead peer: cdfl gives up the request, the database gives up the lock. No statement waits
# forever for other programs. A hung database on a live machine blocks requests until it responds.
_POSTGRES = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds
    "options": "-c synchronous_commit=on -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 "
    f"-c tcp_keepalives_count=3 -c lock_timeout={LOCK_SECONDS}s -c statement_timeout={STATEMENT_SECONDS}s "
    f"-c idle_in_transaction_session_timeout={LEASE_SECONDS}s",  # no paused process stops the others
}


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of the database into errors of the store."""
    try:
        yield
    except AWAY as error:
        raise StoreUnavailable(f"the database cannot be used now: {first_line(error)}") from error
    except OSError as error:
        raise StoreUnavailable(f"the folder of the database cannot be used now: {error}") from error
    except (DatabaseError, sqlite3.DatabaseError) as error:
        if type(error) not in (DatabaseError, sqlite3.DatabaseError):  # a bug of cdfl, not damage
            raise
        raise StoreDamaged(f"the database cannot be read: {first_line(error)}", "restore a backup") from error


@contextmanager
def blame_url() -> Iterator[None]:
    """Turn errors into one about the URL, which is all that was used so far."""
    try:
        yield
    except (ArgumentError, ProgrammingError) as error:
        raise StoreError(f"the URL of the database (--store) cannot be used: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return what the database said, without the statement."""
    return str(getattr(error, "orig", None) or error).partition("\n")[0]
