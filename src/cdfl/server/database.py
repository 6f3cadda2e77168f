"""A database with one writer: SQLite or PostgreSQL, through the same statements.

Reads take connections from a pool. All writes of the owner go through one connection, which also holds the owner's
lock. On PostgreSQL the lock ends with that connection, so no write can follow after the lock was lost.
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

from cdfl.server import tables
from cdfl.server.errors import StoreBusy, StoreDamaged, StoreError, StoreLost, StoreUnavailable

# sqlite3's own error is raised while a connection is set up.
AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeout, sqlite3.OperationalError)
LOCK_CLASS = 0x6364666C  # "cdfl" in ASCII: other programs may use advisory locks in the same database
WAIT_FOR_WRITERS = 5  # SQLite waits this many seconds for the transaction of another process (`cdfl token`)
TURN_SECONDS = 10.0  # a thread waits this long for the transaction of another thread
SQLITE = ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON")
POOL = 16
NOTICE = 1.0  # PostgreSQL may take this many seconds to notice that a former owner has disconnected
LOCK_SECONDS = 5  # limit for locks of other programs on PostgreSQL; cdfl holds its own for moments
STATEMENT_SECONDS = 30  # limit for a statement on PostgreSQL, without COMMIT
CHECK_SECONDS = 2  # limit for locks in `check_writable`, which is called often


class UncertainCommit(StoreUnavailable):
    """The connection broke during COMMIT, so the transaction may be committed or not."""


class Database:
    """Connections to one database, and the lock of its owner.

    Only an owner creates the tables; with `own=False` they must exist. `Database.open` takes care of this.
    """

    def __init__(self, url: str, *, own: bool) -> None:
        self.url = parse_url(url)
        self.own = own
        if self.is_sqlite:
            _make_file(Path(str(self.url.database)))
        with _blame_url():
            self.engine = _engine(self.url)
        self._begin_statement = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        self._turn = threading.RLock()  # one writer at a time
        self._connection: sa.Connection | None = None
        self._lock_file: int | None = None
        self._closed = False
        self._owner = ""  # the expected owner in `meta`; empty until this process has owned the store
        with self._turn:
            try:
                self._connected()
            except BaseException:
                self.close()
                raise

    @classmethod
    def open(cls, url: str, *, own: bool) -> "Database":
        """Open a database. If it has no tables, own it briefly to create them, also with `own=False`."""
        if not own and not cls.exists(url):
            cls(url, own=True).close()
        return cls(url, own=own)

    @classmethod
    def exists(cls, url: str) -> bool:
        """Return whether the tables exist, without creating a file; raise StoreVersion if this cdfl cannot use them."""
        place = parse_url(url)
        if place.get_backend_name() == "sqlite" and not Path(str(place.database)).exists():
            return False
        database = cls(url, own=False)
        try:
            with database.read() as connection:
                return tables.exist(connection)
        finally:
            database.close()

    @property
    def is_sqlite(self) -> bool:
        """Return whether it is SQLite; otherwise it is PostgreSQL."""
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Lend a connection for reading; each statement sees what was committed before it."""
        self._check_open()
        with _translated(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def moment(self) -> Iterator[sa.Connection]:
        """Lend a connection for reading, whose statements all see the same moment."""
        begin = "BEGIN" if self.is_sqlite else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        with self.read() as connection:
            connection.exec_driver_sql(begin)
            try:
                yield connection
            finally:
                connection.exec_driver_sql("ROLLBACK")

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Run a transaction, committed and durable when the block ends without an error. One at a time.

        Raises StoreUnavailable if nothing was changed, UncertainCommit if COMMIT failed.
        """
        with turn_of(self._turn):
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
                    raise UncertainCommit(str(error)) from error
                raise

    def check_writable(self, connection: sa.Connection) -> None:
        """Check, inside a transaction, that no other program locks the tables.

        SQLite has no lock on a single table, so a transaction that has begun may write all of them.
        """
        if not self.is_sqlite:
            names = ", ".join(table.name for table in tables.TABLES.sorted_tables)
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{CHECK_SECONDS}s'")
            connection.exec_driver_sql(f"LOCK TABLE {names} IN ROW EXCLUSIVE MODE")  # what INSERT takes

    def clean(self) -> None:
        """Remove deleted data from SQLite's log, too. PostgreSQL does this in the background."""
        if self.is_sqlite:
            with self._turn, _translated():
                self._connected().exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close all connections and release the lock."""
        with self._turn:
            self._closed = True
            self._disconnect()
            self.engine.dispose()
            if self._lock_file is not None:
                os.close(self._lock_file)
                self._lock_file = None

    def _begun(self) -> sa.Connection:
        """Begin a transaction on the writer's connection; replace a connection that died while idle."""
        fresh = self._connection is None
        try:
            return self._begin()
        except StoreUnavailable as error:
            self._disconnect()
            if fresh or _is_locked(error):
                raise
        return self._begin()

    def _begin(self) -> sa.Connection:
        connection = self._connected()
        with _translated():
            connection.exec_driver_sql(self._begin_statement)
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
                self.engine.dispose()  # a connection opened while the file was read-only stays read-only
            with _translated(), _blame_url():  # no statement yet: an error is about the URL
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
        """Become the owner, or check after a reconnection that no other server became it."""
        self._check_not_replaced(connection)  # before waiting for the lock, which a new owner would keep
        locked = self._lock(connection)
        written = self._check_not_replaced(connection)
        if not locked and self._owner:
            raise StoreUnavailable("the database has not yet noticed that the old connection of this server is dead")
        if not locked:
            raise StoreBusy(
                f"the store is in use ({_describe(written)}); stop that server first, or give this one its own store"
            )
        if not self._owner:
            about = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
            owner = json.dumps({**about, "nonce": secrets.token_hex(8)})
            self._enter(connection, owner)

    def _check_not_replaced(self, connection: sa.Connection) -> str:
        """Return the last owner; raise StoreLost if another server took over the store from this one."""
        written = _owner_of(connection)
        if self._owner and written != self._owner:
            raise StoreLost(f"the store was taken over by another server ({_describe(written)}); this one must stop")
        return written

    def _enter(self, connection: sa.Connection, owner: str) -> None:
        """Create the tables if needed, and sign as the owner."""
        connection.exec_driver_sql(self._begin_statement)
        try:
            tables.create(connection)
            tables.put(connection, "owner", owner)
            connection.exec_driver_sql("COMMIT")
        except ProgrammingError as error:
            raise StoreError(f"the tables of the store cannot be created: {_first_line(error)}") from error
        except BaseException:
            with suppress(Exception):
                connection.exec_driver_sql("ROLLBACK")
            raise
        self._owner = owner

    def _lock(self, connection: sa.Connection) -> bool:
        """Try to take the owner's lock; both kinds end with the process that holds them."""
        if not self.is_sqlite:
            asked = sa.text("SELECT pg_try_advisory_lock(:area, hashtext(coalesce(current_schema(), '')))")
            deadline = time.monotonic() + NOTICE
            while not (locked := bool(connection.execute(asked, {"area": LOCK_CLASS}).scalar())):
                if time.monotonic() > deadline:
                    break
                time.sleep(NOTICE / 20)
            return locked
        if self._lock_file is None:
            file = os.open(str(self.url.database), os.O_RDWR)  # of the database itself: nobody deletes that by mistake
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # SQLite's own locks are of another kind
            except BlockingIOError:
                _LEFT_OPEN.append(file)  # closing it would end SQLite's locks of this process
                return False
            self._lock_file = file
        return True


_LEFT_OPEN: list[int] = []


@contextmanager
def turn_of(lock: threading.RLock) -> Iterator[None]:
    """Take a lock; StoreUnavailable if other threads, which wait for the store, keep it too long."""
    if not lock.acquire(timeout=TURN_SECONDS):
        raise StoreUnavailable("the store is busy: another write has not ended")
    try:
        yield
    finally:
        lock.release()


def _is_locked(error: StoreUnavailable) -> bool:
    """Return whether another program holds SQLite's lock: a new connection would wait for it just as long."""
    return "database is locked" in str(error)


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


def _owner_of(connection: sa.Connection) -> str:
    """Return what the last owner wrote; an empty string if there was none."""
    return tables.get(connection, "owner") or "" if tables.exist(connection) else ""


def _describe(owner: str) -> str:
    """Describe an owner for an error message."""
    if not owner:
        return "a server that has just started"
    about = json.loads(owner)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["since"]))
    return f"process {about['pid']} on {about['host']}, since {since}"


def _engine(url: URL) -> sa.Engine:
    """Make an engine in autocommit mode: transactions are written out as BEGIN and COMMIT."""
    shared: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "pool_size": POOL, "max_overflow": POOL}
    if url.get_backend_name() != "sqlite":
        options = f"{_POSTGRES['options']} {url.query.get('options', '')}"
        arguments = _POSTGRES | dict(url.query) | {"options": options}  # the URL's own arguments win
        return sa.create_engine(url, pool_pre_ping=True, connect_args=arguments, **shared)
    engine = sa.create_engine(url, connect_args={"timeout": WAIT_FOR_WRITERS}, **shared)
    event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _make_file(path: Path) -> None:
    """Create the file of an SQLite database, private to this user; SQLite's other files get the same mode."""
    with _translated():
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
    f"-c tcp_keepalives_count=3 -c lock_timeout={LOCK_SECONDS}s -c statement_timeout={STATEMENT_SECONDS}s",
}


@contextmanager
def _translated() -> Iterator[None]:
    """Turn errors of the database into errors of the store."""
    try:
        yield
    except AWAY as error:
        raise StoreUnavailable(f"the database cannot be used now: {_first_line(error)}") from error
    except OSError as error:
        raise StoreUnavailable(f"the folder of the database cannot be used now: {error}") from error
    except (DatabaseError, sqlite3.DatabaseError) as error:
        if type(error) not in (DatabaseError, sqlite3.DatabaseError):  # a bug of cdfl, not damage
            raise
        raise StoreDamaged(f"the database cannot be read: {_first_line(error)}", "restore a backup") from error


@contextmanager
def _blame_url() -> Iterator[None]:
    """Turn errors into one about the URL, which is all that was used so far."""
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
