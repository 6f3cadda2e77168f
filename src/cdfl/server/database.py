"""A database with one writer: SQLite or PostgreSQL, through the same statements.

Reads take connections from a pool. All writes of the owner go through one connection, which also holds the owner's
lock: on PostgreSQL the lock lives and dies with that connection, so no write can pass after the lock was lost.
"""

import fcntl
import json
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
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

from cdfl.server import schema
from cdfl.server.journal import StoreBusy, StoreDamaged, StoreError, StoreLost, StoreUnavailable

# Those of sqlite3 come as they are while a connection is set up.
AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeout, sqlite3.OperationalError)
LOCK_CLASS = 0x6364666C  # "cdfl": beside other users of advisory locks in the same database
WAIT_FOR_WRITERS = 30  # seconds that SQLite waits for another process (`cdfl token`) to finish its transaction
SQLITE = ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON")
POOL = 16
NOTICE = 1.0  # seconds that PostgreSQL may take to notice that the connection of a former owner is closed
LOCK_SECONDS = 5  # that PostgreSQL waits for a lock of somebody else: we hold ours for moments, so it is no cdfl
STATEMENT_SECONDS = 30  # that a statement may take there; COMMIT is no part of it, and migrations are exempt
CHECK_SECONDS = 2  # the first of them for `check_writable`, which is asked for often


class InDoubt(StoreUnavailable):
    """The connection broke while a transaction was being committed: nobody knows yet whether it was."""


class Database:
    """Connections to one database, and the lock of its owner."""

    def __init__(self, url: str, *, own: bool) -> None:
        self.url = parse_url(url)
        self.own = own
        if self.is_sqlite:
            _make_file(Path(str(self.url.database)))
        with _url_to_blame():
            self.engine = _engine(self.url)
        self._upsert = sqlite.insert if self.is_sqlite else postgresql.insert
        self._begin_words = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        self._turn = threading.RLock()  # one writer at a time
        self._connection: sa.Connection | None = None
        self._lock_file: int | None = None
        self._closed = False
        self._owner = ""  # what the owner's row must say; empty until this process has owned the store
        with self._turn:
            try:
                self._connected()
            except BaseException:
                self.close()
                raise

    @classmethod
    def open(cls, url: str, *, own: bool) -> "Database":
        """A database whose tables are up to date. Only an owner may bring them there, so it is one for a moment."""
        if not own and cls.version(url) < schema.VERSION:
            cls(url, own=True).close()
        return cls(url, own=own)

    @classmethod
    def version(cls, url: str) -> int:
        """The version of the tables, which must not be newer than ours; 0: there are none."""
        database = cls(url, own=False)
        try:
            with database.read() as connection:
                return schema.check_version(connection)
        finally:
            database.close()

    @classmethod
    def exists(cls, url: str) -> bool:
        """Whether there are any tables; asking makes no files."""
        place = parse_url(url)
        if place.get_backend_name() == "sqlite" and not Path(str(place.database)).exists():
            return False
        return cls.version(url) > 0

    @property
    def is_sqlite(self) -> bool:
        """SQLite rather than PostgreSQL."""
        return self.url.get_backend_name() == "sqlite"

    def insert(self, table: sa.Table) -> Any:
        """An INSERT that knows `on_conflict_do_nothing` and `..._update`, which both databases spell alike."""
        return self._upsert(table)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection to read from; every statement sees what is committed when it begins."""
        self._check_open()
        with _translated(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction, committed and durable when the block has ended without an error. One at a time.

        StoreUnavailable: nothing was changed. InDoubt: the commit itself failed, look before you go on.
        """
        with self._turn:
            connection = self._begun()
            try:
                with _translated():
                    yield connection
            except BaseException as error:
                self._roll_back(connection)
                if isinstance(error, StoreUnavailable):
                    self._disconnect()
                raise
            try:
                with _translated():
                    connection.exec_driver_sql("COMMIT")
            except BaseException as error:
                self._roll_back(connection)
                if isinstance(error, StoreUnavailable):
                    raise InDoubt(str(error)) from error
                raise

    def check_writable(self, connection: sa.Connection) -> None:
        """Inside a transaction: make sure that nobody keeps us from reading and writing our tables.

        SQLite knows no lock on a single table: whoever has begun to write may write them all.
        """
        if not self.is_sqlite:
            tables = ", ".join(table.name for table in schema.TABLES.sorted_tables)
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{CHECK_SECONDS}s'")
            connection.exec_driver_sql(f"LOCK TABLE {tables} IN ROW EXCLUSIVE MODE")  # what INSERT takes

    def clean(self) -> None:
        """Make SQLite overwrite what was deleted in its log as well. PostgreSQL does so by itself, in its own time."""
        if self.is_sqlite:
            with self._turn, _translated():
                self._connected().exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Let go of connections and lock."""
        with self._turn:
            self._closed = True
            self._disconnect()
            self.engine.dispose()
            if self._lock_file is not None:
                os.close(self._lock_file)
                self._lock_file = None

    def _begun(self) -> sa.Connection:
        """The writer's connection, in a transaction; a connection that died while it was idle is replaced."""
        fresh = self._connection is None
        try:
            return self._begin()
        except StoreUnavailable:
            self._disconnect()
            if fresh:
                raise
        return self._begin()

    def _begin(self) -> sa.Connection:
        connection = self._connected()
        with _translated():
            connection.exec_driver_sql(self._begin_words)
        return connection

    def _roll_back(self, connection: sa.Connection) -> None:
        try:
            connection.exec_driver_sql("ROLLBACK")
        except Exception:  # the connection is gone, and with it the transaction
            self._disconnect()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store was closed")

    def _connected(self) -> sa.Connection:
        self._check_open()
        if self._connection is None:
            if self.is_sqlite:
                self.engine.dispose()  # those for reading may be read-only: it opens a file so that is, and stays so
            with _translated(), _url_to_blame():  # nothing is asked of the database yet
                connection = self.engine.connect()
            try:
                with _translated():
                    if self.own:
                        self._take(connection)
            except BaseException:
                _discard(connection)
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            _discard(self._connection)
            self._connection = None

    def _take(self, connection: sa.Connection) -> None:
        """Become the owner, or make sure that nobody else was in the meantime."""
        self._check_not_replaced(connection)  # no need to wait for a lock that somebody else has
        locked = self._lock(connection)
        written = self._check_not_replaced(connection)
        if not locked and self._owner:
            raise StoreUnavailable("the database has not yet noticed that the old connection of this server is dead")
        if not locked:
            raise StoreBusy(
                f"the store is in use ({describe(written)}); stop that server first, or give this one its own store"
            )
        if not self._owner:
            about = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
            owner = json.dumps({**about, "nonce": secrets.token_hex(8)})
            self._enter(connection, owner)

    def _check_not_replaced(self, connection: sa.Connection) -> str:
        """Refuse to go on where this server was the owner and another one came after it; returns the last owner."""
        written = owner_of(connection)
        if self._owner and written != self._owner:
            raise StoreLost(f"the store was taken over by another server ({describe(written)}); this one must stop")
        return written

    def _enter(self, connection: sa.Connection, owner: str) -> None:
        """The first thing an owner does: bring the tables up to date and sign."""
        connection.exec_driver_sql(self._begin_words)
        try:
            if not self.is_sqlite:
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # a long journal takes its time
            schema.migrate(connection)
            schema.put(connection, "owner", owner)
            connection.exec_driver_sql("COMMIT")
        except ProgrammingError as error:
            raise StoreError(f"the tables of the store cannot be made: {_first_line(error)}") from error
        except BaseException:
            with suppress(Exception):
                connection.exec_driver_sql("ROLLBACK")
            raise
        self._owner = owner

    def _lock(self, connection: sa.Connection) -> bool:
        """Both kinds of lock go away with the process that holds them."""
        if not self.is_sqlite:
            asked = sa.text("SELECT pg_try_advisory_lock(:area, hashtext(coalesce(current_schema(), '')))")
            deadline = time.monotonic() + NOTICE
            while not (locked := bool(connection.execute(asked, {"area": LOCK_CLASS}).scalar())):
                if time.monotonic() > deadline:
                    break
                time.sleep(NOTICE / 20)
            return locked
        if self._lock_file is None:
            file = os.open(f"{self.url.database}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            self._lock_file = file
        return True


def parse_url(text: str) -> URL:
    """The URL of a database we can use.

    >>> parse_url("postgresql://me@db/cdfl").drivername
    'postgresql+psycopg'
    """
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError):
        scheme = text.partition("://")[0]  # what follows may hold a password
        raise StoreError(
            f"the database is {scheme!r}://...; expected sqlite:///FILE or postgresql://USER@HOST/NAME"
        ) from None
    except ValueError:
        raise StoreError("the port in the URL of the database (--store) is no number; expected HOST:5432") from None
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreError(f"the database is a {backend} one; expected sqlite:///FILE or postgresql://USER@HOST/NAME")
    if not url.database or url.database == ":memory:":
        raise StoreError("an SQLite database in memory would lose everything; expected sqlite:///FILE")
    return url.set(drivername="sqlite", database=str(Path(url.database).absolute()))


def owner_of(connection: sa.Connection) -> str:
    """What the row of the last owner says; empty: there was none."""
    if not sa.inspect(connection).has_table("meta"):
        return ""
    return schema.get(connection, "owner") or ""


def describe(owner: str) -> str:
    """An owner in words."""
    if not owner:
        return "a server that has just started"
    about = json.loads(owner)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["since"]))
    return f"process {about['pid']} on {about['host']}, since {since}"


def _engine(url: URL) -> sa.Engine:
    """Autocommit everywhere: where a transaction is meant, BEGIN and COMMIT are written out."""
    shared: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "pool_size": POOL, "max_overflow": POOL}
    if url.get_backend_name() != "sqlite":
        options = f"{_POSTGRES['options']} {url.query.get('options', '')}"
        arguments = _POSTGRES | dict(url.query) | {"options": options}  # what the URL says comes last, and counts
        return sa.create_engine(url, pool_pre_ping=True, connect_args=arguments, **shared)
    engine = sa.create_engine(url, connect_args={"timeout": WAIT_FOR_WRITERS}, **shared)
    event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _make_file(path: Path) -> None:
    """Make the file of an SQLite database, readable for nobody else; SQLite makes its other files like it."""
    with _translated():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _set_up_sqlite(connection: Any, _: object) -> None:
    for pragma in SQLITE:
        connection.execute(f"PRAGMA {pragma}").close()


# Neither end waits for ever for a peer that has vanished: ours gives up a request, the database gives up our lock. Nor
# does a statement wait for ever for others. Only a database that is frozen while its machine is up is waited for: the
# network says that it is there, and it is the database itself that would have to keep these times.
_POSTGRES = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds
    "options": "-c synchronous_commit=on -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 "
    f"-c tcp_keepalives_count=3 -c lock_timeout={LOCK_SECONDS}s -c statement_timeout={STATEMENT_SECONDS}s",
}


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the database as errors of the store."""
    try:
        yield
    except AWAY as error:
        raise StoreUnavailable(f"the database cannot be used now: {_first_line(error)}") from error
    except OSError as error:
        raise StoreUnavailable(f"the folder of the database cannot be used now: {error}") from error
    except (DatabaseError, sqlite3.DatabaseError) as error:
        if type(error) not in (DatabaseError, sqlite3.DatabaseError):  # our mistake, not the database's
            raise
        raise StoreDamaged(f"the database cannot be read: {_first_line(error)}", "restore a backup") from error


@contextmanager
def _url_to_blame() -> Iterator[None]:
    """Mistakes, where all that was said to anybody is the URL."""
    try:
        yield
    except (ArgumentError, ProgrammingError) as error:
        raise StoreError(f"the URL of the database (--store) cannot be used: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).partition("\n")[0]


def _discard(connection: sa.Connection) -> None:
    with suppress(Exception):
        connection.invalidate()
    with suppress(Exception):
        connection.close()
