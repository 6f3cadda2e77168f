"""A PostgreSQL of our own: made in a temporary folder, reached through a socket in it, gone at the end."""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

USER = "cdfl"
numbers = count()


def find_binaries() -> Path | None:
    """The folder of initdb and postgres; None: not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    folders += [Path(on_path).resolve().parent] if on_path else []
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class Postgres:
    """One server. It refuses to run as root, so there it runs as somebody else."""

    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="cdfl-pg-"))  # short: the path of a socket has at most 107 bytes
        self.account = _account()
        os.chown(self.folder, self.account.pw_uid, self.account.pw_gid)
        self.process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", self.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C").wait()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self, *settings: str) -> None:
        quick = ("listen_addresses=", "fsync=off")  # what is tested is who asks when, not what PostgreSQL does then
        options = [word for setting in (*quick, *settings) for word in ("-c", setting)]
        self.process = self._run("postgres", "-D", self.data, "-k", self.folder, *options)
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends all connections and shuts down; SIGQUIT does not even tidy up."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=60)
            self.process = None

    def delete(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}"

    def new_schema(self) -> str:
        """The URL of an empty schema: as good as a database of its own, and made and deleted in no time."""
        name = f"test_{next(numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}&options=-csearch_path%3D{name}"

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def away(self) -> Iterator[None]:
        """The database is shut down, and comes back."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def _run(self, program: str, *words: object) -> "subprocess.Popen[bytes]":
        as_other: dict[str, Any] = {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603
                [str(self.binaries / program), *map(str, words)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
                **(as_other if os.getuid() == 0 else {}),
            )


def _account() -> pwd.struct_passwd:
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid())
    names = [account.pw_name for account in pwd.getpwall()]
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def _die_with_parent() -> None:
    """Also when the tests are killed, no server stays behind (Linux; elsewhere it would)."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
