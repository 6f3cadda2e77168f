"""A database with one owner: SQLite or PostgreSQL, through the same statements.

Reads take connections from a pool. All writes of a process go through one connection, and one transaction writes at a
time, in all processes together. The owner's connection also holds the owner's lock. On PostgreSQL the lock ends with
that connection, so no write can follow after the lock was lost.

Several front ends may share a PostgreSQL database. One of them is the owner. The database ends the connection of an
owner that is silent for `LEASE_SECONDS`; then another front end may take the lock.
"""

import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from cdfl.server import tables
from cdfl.server.database_engine import (
    LEASE_SECONDS,
    blame_url,
    first_line,
    make_engine,
    make_file,
    parse_url,
    translated,
)
from cdfl.server.store_errors import StoreBusy, StoreError, StoreLost, StoreUnavailable

LOCK_CLASS = 0x6364666C  # "cdfl" in ASCII: other programs may use advisory locks in the same database
PRESENCE_CLASS = LOCK_CLASS + 1  # shared by front ends; alone for one that starts first, and for any other owner
WRITE_CLASS = LOCK_CLASS + 2  # held by the one transaction that writes
BEAT_SECONDS = 2.0  # such an owner says something this often
TURN_SECONDS = 10.0  # a thread waits this long for the transaction of another thread
NOTICE = 1.0  # PostgreSQL may take this many seconds to notice that a former owner has disconnected
COME_SECONDS = 5.0  # a front end that starts waits this long for another one that sweeps the blobs
CHECK_SECONDS = 2  # limit for locks in `check_writable`, which is called often


class UncertainCommit(StoreUnavailable):
    """The connection broke during COMMIT, so the transaction may be committed or not."""


class Database:
    """Connections to one database, and the lock of its owner.

    Only an owner creates the tables; with `own=False` they must exist. `Database.open` takes care of this.
    With `shared=True` it is one of several front ends on PostgreSQL: it becomes the owner by `try_own`, if at all.
    """

    def __init__(self, url: str, *, own: bool, shared: bool = False) -> None:
        self.url = parse_url(url)
        self.own = own
        self.shared = shared and not self.is_sqlite
        self.is_alone = not self.shared  # no other front end was there when this one came
        if self.is_sqlite:
            make_file(Path(str(self.url.database)))
        with blame_url():
            self.engine = make_engine(self.url)
        self._begin_statement = "BEGIN IMMEDIATE"  # of SQLite
        self._schema = 0  # a number for the schema on PostgreSQL, in which several stores may share a database
        self._turn = threading.RLock()  # one writer at a time
        self._connection: sa.Connection | None = None
        self._lock_file: int | None = None
        self._closed = False
        self._owner = ""  # the expected owner in `meta`; empty unless this process owns the store
        self._has_come = False  # whether this front end has been present before
        self._beats: threading.Thread | None = None
        self._over = threading.Event()
        with self._turn:
            try:
                self._connected()
            except BaseException:
                self.close()
                raise

    @classmethod
    def open(cls, url: str, *, own: bool, shared: bool = False) -> "Database":
        """Open a database. If it has no tables, own it briefly to create them, also with `own=False`."""
        if not own and not cls.exists(url):
            cls(url, own=True).close()
        return cls(url, own=own, shared=shared)

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
        with translated(), self.engine.connect() as connection:
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

    @property
    def is_owner(self) -> bool:
        """Return whether this process owns the database, as far as it knows."""
        return bool(self._owner)

    def try_own(self) -> bool:
        """Become the owner among several front ends; return False if another one is."""
        with turn_of(self._turn):
            if not self._owner:
                connection = self._connected()
                try:
                    with translated():
                        if not self._lock(connection, LOCK_CLASS):
                            return False
                        connection.exec_driver_sql(f"SET idle_session_timeout = '{LEASE_SECONDS}s'")
                        self._enter(connection)
                except BaseException:
                    self._disconnect()
                    raise
                if self._beats is None:
                    self._beats = threading.Thread(target=self._beat, name="cdfl-beat", daemon=True)
                    self._beats.start()
            return True

    def disown(self) -> None:
        """Give the database to another front end."""
        with self._turn:
            self._owner = ""
            self._disconnect()

    def admit_others(self) -> None:
        """Let other front ends come: this one was alone until now."""
        if self.shared and self.is_alone:
            with turn_of(self._turn), translated():
                connection = self._connected()
                self._lock(connection, PRESENCE_CLASS, how="_shared")
                connection.exec_driver_sql(f"SELECT pg_advisory_unlock({PRESENCE_CLASS}, {self._schema})")

    @contextmanager
    def write(self, *, as_owner: bool = False) -> Iterator[sa.Connection]:
        """Run a transaction, committed and durable when the block ends without an error. One at a time.

        Raises StoreUnavailable if nothing was changed, UncertainCommit if COMMIT failed; with `as_owner`, StoreLost if
        another front end owns the database.
        """
        with turn_of(self._turn):
            connection = self._begun()
            try:
                if as_owner and self.shared and not self._owner:
                    raise StoreLost("another server applies the uploads now")
                with translated():
                    yield connection
            except BaseException as error:
                self._roll_back(connection)
                if isinstance(error, StoreUnavailable):
                    self._disconnect()
                raise
            try:
                with translated():
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
            with self._turn, translated():
                self._connected().exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close all connections and release the lock."""
        self._over.set()
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
            if _is_awaited(error) and self._connection is not None:
                self._roll_back(self._connection)  # another process writes for long; the connection is fine
                raise
            self._disconnect()
            if fresh or _is_locked(error):
                raise
        return self._begin()

    def _begin(self) -> sa.Connection:
        connection = self._connected()
        with translated():
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
            with translated(), blame_url():  # no statement yet: an error is about the URL
                connection = self.engine.connect()
            try:
                with translated():
                    if not self.is_sqlite:
                        self._find_schema(connection)
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

    def _find_schema(self, connection: sa.Connection) -> None:
        found = connection.exec_driver_sql("SELECT hashtext(coalesce(current_schema(), ''))").scalar()
        self._schema = int(found or 0)
        self._begin_statement = f"BEGIN; SELECT pg_advisory_xact_lock({WRITE_CLASS}, {self._schema})"

    def _take(self, connection: sa.Connection) -> None:
        """Come as a front end, become the owner, or check that no other server became it since the connection broke."""
        self._check_not_replaced(connection)  # before waiting for the lock, which a new owner would keep
        if self.shared and not self._owner:
            self._come(connection)
            return
        locked = self._lock_alone(connection)
        written = self._check_not_replaced(connection)
        if not locked and self._owner:
            raise StoreUnavailable("the database has not yet noticed that the old connection of this server is dead")
        if not locked:
            raise _busy(written)
        if not self._owner:
            self._enter(connection)
        elif self.shared:
            connection.exec_driver_sql(f"SET idle_session_timeout = '{LEASE_SECONDS}s'")

    def _come(self, connection: sa.Connection) -> None:
        """Take part as one of several front ends, which do not own the database."""
        if not self._has_come and self._lock(connection, PRESENCE_CLASS):
            self.is_alone = True
        elif not _within(COME_SECONDS, lambda: self._lock(connection, PRESENCE_CLASS, how="_shared")):
            raise _busy(_owner_of(connection))
        if not tables.exist(connection):
            self._in_transaction(connection, tables.create)
        self._has_come = True

    def _check_not_replaced(self, connection: sa.Connection) -> str:
        """Return the last owner; raise StoreLost if another server took over the store from this one."""
        written = _owner_of(connection)
        if self._owner and written != self._owner:
            if self.shared:
                self._owner = ""
            raise StoreLost(f"the store was taken over by another server ({_describe(written)}); this one must stop")
        return written

    def _enter(self, connection: sa.Connection) -> None:
        """Create the tables if needed, and sign as the owner."""
        about = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        owner = json.dumps({**about, "nonce": secrets.token_hex(8)})

        def sign(connection: sa.Connection) -> None:
            tables.create(connection)
            tables.put(connection, "owner", owner)

        self._in_transaction(connection, sign)
        self._owner = owner

    def _in_transaction(self, connection: sa.Connection, work: Callable[[sa.Connection], None]) -> None:
        connection.exec_driver_sql(self._begin_statement)
        try:
            work(connection)
            connection.exec_driver_sql("COMMIT")
        except ProgrammingError as error:
            raise StoreError(f"the tables of the store cannot be created: {first_line(error)}") from error
        except BaseException:
            with suppress(Exception):
                connection.exec_driver_sql("ROLLBACK")
            raise

    def _beat(self) -> None:
        """Say something on the owner's connection from time to time: the database ends one that is silent."""
        while not self._over.wait(BEAT_SECONDS):
            if self._turn.acquire(blocking=False):  # otherwise it is in use
                try:
                    if self._owner and self._connection is not None:
                        with translated():
                            self._connection.exec_driver_sql("SELECT 1")
                except StoreUnavailable:
                    self._disconnect()
                    with suppress(StoreError):  # a later write says why
                        self._connected()  # so that an owner that was replaced knows it
                finally:
                    self._turn.release()

    def _lock_alone(self, connection: sa.Connection) -> bool:
        """Try to take the owner's lock, and to keep front ends away; all locks end with the process that holds them."""
        if not self.is_sqlite:
            presence = "_shared" if self.shared else ""
            return _within(
                NOTICE,
                lambda: self._lock(connection, LOCK_CLASS) and self._lock(connection, PRESENCE_CLASS, how=presence),
            )
        if self._lock_file is None:
            file = os.open(str(self.url.database), os.O_RDWR)  # of the database itself: nobody deletes that by mistake
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # SQLite's own locks are of another kind
            except BlockingIOError:
                _LEFT_OPEN.append(file)  # closing it would end SQLite's locks of this process
                return False
            self._lock_file = file
        return True

    def _lock(self, connection: sa.Connection, kind: int, how: str = "") -> bool:
        """Try to take a lock of PostgreSQL that ends with the connection."""
        asked = f"SELECT pg_try_advisory_lock{how}({kind}, {self._schema})"
        return bool(connection.exec_driver_sql(asked).scalar())


_LEFT_OPEN: list[int] = []


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(NOTICE / 20)
    return True


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


def _is_awaited(error: StoreUnavailable) -> bool:
    """Return whether PostgreSQL gave up waiting for a lock."""
    return "lock timeout" in str(error)


def _owner_of(connection: sa.Connection) -> str:
    """Return what the last owner wrote; an empty string if there was none."""
    return tables.get(connection, "owner") or "" if tables.exist(connection) else ""


def _busy(owner: str) -> StoreBusy:
    return StoreBusy(
        f"the store is in use ({_describe(owner)}); stop that server first, or give this one its own store"
    )


def _describe(owner: str) -> str:
    """Describe an owner for an error message."""
    if not owner:
        return "a server that has just started"
    about = json.loads(owner)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["since"]))
    return f"process {about['pid']} on {about['host']}, since {since}"


def _discard(connection: sa.Connection) -> None:
    with suppress(Exception):
        connection.invalidate()
    with suppress(Exception):
        connection.close()
