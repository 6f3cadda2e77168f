"""A disk that can be pulled out: it fails where it is told to, and then forgets what was not synced.

Everything between two of its steps happens at once, so failing before and after every step is failing everywhere.
"""

import errno
import os
import shutil
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from cdfl.server.store import Store

# `crash`: the process is gone. `error`: the call fails and the process goes on. Before the step, or after it was done.
Fault = Literal["crash before", "crash after", "error before", "error after"]


class Crash(BaseException):
    """Power off."""


class AtOnce(Executor):
    """No thread: what is submitted is done, so that a fault comes where it was meant to."""

    def submit(self, function, /, *arguments, **options):
        future = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class Disk:
    """Stands between `os` and a folder of blobs, and watches the commits of the database beside it."""

    def __init__(self, folder: Path, graveyard: Path, *, statements: bool = False) -> None:
        self.folder, self.graveyard = folder, graveyard
        self.statements = statements  # every statement of the database is a step, not only COMMIT
        graveyard.mkdir()
        self.log: list[tuple[str, str]] = []  # (step, name) in order
        self.synced: set[int] = set()  # inodes whose content is durable
        self.unsettled: dict[str, Path | None] = {}  # names that changed since the folder was synced; what they were
        self.fault: Fault | None = None
        self.when: int | str = 0
        self._connections: list[Any] = []
        self._real = {name: getattr(os, name) for name in ("fsync", "link", "replace", "unlink", "writev")}

    def install(self, monkeypatch) -> None:
        for name in self._real:
            monkeypatch.setattr(os, name, getattr(self, name))

    def watch(self, store: Store) -> None:
        self._connections = [store.database._connection.connection.driver_connection]
        sa.event.listen(store.database.engine, "connect", lambda opened, _: self._connections.append(opened))
        sa.event.listen(store.database.engine, "before_cursor_execute", self._before_statement)
        sa.event.listen(store.database.engine, "after_cursor_execute", self._after_statement)

    def arm(self, fault: Fault, when: int | str) -> None:
        """The fault comes after so many more steps, or at the next step of this kind."""
        self.fault, self.when = fault, when

    def disarm(self) -> None:
        """It does not come any more."""
        self.fault = None

    def step(self, name: str) -> None:
        """A step of something else that may fail."""
        self._before(name, "")
        self._after(name, "")

    # -- in place of os

    def fsync(self, file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        self._before("fsync", path.name)
        if path == self.folder:
            self.unsettled.clear()
        else:
            self.synced.add(os.fstat(file).st_ino)
        self._after("fsync", path.name)

    def writev(self, file: int, pieces) -> int:
        self._before("write", "")
        written = self._real["writev"](file, pieces)
        self._after("write", "")
        return written

    def replace(self, source, target) -> None:
        target = Path(target)
        self._before("replace", target.name)
        if target.parent == self.folder:
            self.unsettled.setdefault(target.name, None)
        self._real["replace"](source, target)
        self._after("replace", target.name)

    def link(self, source, target) -> None:
        target = Path(target)
        self._before("link", target.name)
        self.unsettled.setdefault(target.name, None)
        self._real["link"](source, target)
        self._after("link", target.name)

    def unlink(self, path, **options) -> None:
        path = Path(path)
        self._before("unlink", path.name)
        if path.parent == self.folder and path.exists() and path.name not in self.unsettled:
            shutil.copy(path, self.graveyard / path.name)
            self.unsettled[path.name] = self.graveyard / path.name
        if path.exists() and path.stat().st_nlink == 1:
            self.synced.discard(path.stat().st_ino)  # the next file may get the same one
        self._real["unlink"](path, **options)
        self._after("unlink", path.name)

    # -- failing

    def power_off(self) -> None:
        """What was not synced is lost: names fall back to what they were, content is gone. Connections end."""
        for connection in self._connections:
            connection.close()
        for name, was in self.unsettled.items():
            if (self.folder / name).exists():
                self._real["unlink"](self.folder / name)
            if was is not None:
                shutil.copy(was, self.folder / name)
                self.synced.add((self.folder / name).stat().st_ino)
        self.unsettled.clear()
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.synced:
                path.write_bytes(b"")

    def _before(self, step: str, name: str) -> None:
        if isinstance(self.when, int):
            self.when = step if self.when == 0 else self.when - 1
        if self.fault is not None and self.when == step and self.fault.endswith("before"):
            self._fail(step, name)
        self.log.append((step, name))

    def _after(self, step: str, name: str) -> None:
        if self.fault is not None and self.when == step and self.fault.endswith("after"):
            self._fail(step, name)

    def _fail(self, step: str, name: str) -> None:
        fault, self.fault = self.fault, None
        if fault.startswith("crash"):
            raise Crash
        if step in ("commit", "statement"):
            raise sa.exc.OperationalError(step, None, Exception("the connection is lost"))
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    def _before_statement(self, connection, cursor, statement, *_) -> None:
        if statement == "COMMIT" or self.statements:
            self._before("commit" if statement == "COMMIT" else "statement", "")

    def _after_statement(self, connection, cursor, statement, *_) -> None:
        if statement == "COMMIT":  # others that were done and failed are the same as not done: they are rolled back
            self._after("commit", "")
