"""A server that can be started and killed repeatedly: its store, its port, and what a kill leaves."""

import json
import random
import shutil
import signal
import socket
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg

from benchmarks.crash.fork_server import ForkServer, Process
from cdfl.core import Layout, ServerState
from cdfl.server.store import Store

START_SECONDS = 60.0


@dataclass(frozen=True)
class Remains:
    """What there is after a kill, before anything cleans up."""

    keys: set[tuple[str, str]]  # (client_id, key) of all uploads in the journal
    debris: set[str]  # kinds of files that no row references: spool, upload, reply, snapshot


class Site:
    """One store and the server on it. `database` is a folder for SQLite, or a URL of PostgreSQL."""

    def __init__(
        self, fork_server: ForkServer, folder: Path, database: str | None = None, blobs: Path | None = None
    ) -> None:
        self.fork_server, self.folder = fork_server, folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.database = database or str(folder / "store")
        self.blobs = blobs or folder / "store" / "blobs"
        self.log = folder / "server.log"
        self.log.touch()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server: Process | None = None
        self.cdfl = "benchmarks.crash.fork_server:cdfl"  # another function may break the server first

    @property
    def is_sqlite(self) -> bool:
        """SQLite rather than PostgreSQL?"""
        return not self.database.startswith("postgresql")

    @property
    def place(self) -> tuple[str, ...]:
        """Where the store is, as the command line says it."""
        return ("--store", self.database, "--blobs", str(self.blobs))

    # -- the server

    def begin(self, *options: str) -> Process:
        """Start a server; it is not ready yet."""
        words = ("serve", "benchmarks.crash.problem", "--open", "--port", str(self.port), "--max-rate", "1000")
        self.server = self.fork_server.start(self.cdfl, *words, *self.place, *options, log=self.log)
        return self.server

    def start(self, *options: str) -> Process:
        """Start a server and wait until it is ready."""
        server = self.begin(*options)
        self.wait_until_ready()
        return server

    def wait_until_ready(self) -> None:
        """Wait until uploads are taken."""
        assert self.server is not None
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if not self.server.is_alive or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start; it said:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.01)

    def is_ready(self) -> bool:
        """Does it say so?"""
        return self._asked("/readyz") == 200

    def lives(self) -> bool:
        """Does the process answer?"""
        return self._asked("/healthz") == 200

    def stop(self) -> int:
        """End the server as an operator does; returns its exit code."""
        assert self.server is not None
        self.server.send(signal.SIGTERM)
        return self.server.wait(60)

    def _asked(self, path: str) -> int:
        try:
            return httpx.get(self.url + path, timeout=30, verify=False).status_code
        except httpx.TransportError:
            return 0

    # -- the store

    def command(self, *arguments: str) -> tuple[int, str]:
        """Run `cdfl ARGUMENTS` on the store; returns exit code and output."""
        log = self.folder / f"{arguments[0]}.log"
        code = self.fork_server.start("benchmarks.crash.fork_server:cdfl", *arguments, *self.place, log=log).wait(300)
        return code, log.read_text()

    def open_store(self) -> Store:
        """The store, beside a running server."""
        return Store.open(self.database, self.blobs, own=False)

    def recovered(self) -> tuple[ServerState, Layout]:
        """The state a server would begin with now."""
        with self.open_store() as store:
            found = store.recover()
        assert found is not None
        return found.state, found.layout

    def remains(self) -> Remains:
        """Read what a killed server has left, and change nothing."""
        with self._rows() as connection:
            keys = {(client_id, key) for client_id, key in connection.execute("SELECT client_id, key FROM journal")}
        _, left = self.files()
        return Remains(keys, {name.partition("-")[0] for name in left})

    def files(self) -> tuple[set[str], set[str]]:
        """Return the files that the database references but that are missing, and those that it does not reference."""
        with self._rows() as connection:
            blobs = "SELECT upload, base, reply FROM journal UNION ALL SELECT model, NULL, NULL FROM sent_models"
            named = {name for row in connection.execute(blobs) for name in row if name}
            for (models,) in connection.execute("SELECT models FROM snapshots"):
                named |= set(json.loads(models))
        files = {path.name for path in self.blobs.iterdir() if path.is_file() and not path.name.startswith("store-")}
        spool = {f"spool-{path.name}" for path in (self.blobs / "spool").iterdir()}
        return named - files, (files - named) | spool

    @contextmanager
    def _rows(self) -> Iterator[Any]:
        """Yield a connection to the database; copy the files of SQLite first, since opening them would recover them."""
        if not self.is_sqlite:
            with psycopg.connect(self.database) as connection:
                yield connection
            return
        with tempfile.TemporaryDirectory() as copy:
            for name in ("store.db", "store.db-wal"):
                source = Path(self.database) / name
                if source.exists():
                    shutil.copy(source, copy)
            files = sqlite3.connect(Path(copy) / "store.db")
            try:
                yield files
            finally:
                files.close()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def any_retention(random: random.Random) -> tuple[str, ...]:
    """Options for a server that takes and deletes snapshots all the time, each time another way."""
    options = ("--snapshot-every", str(random.randint(2, 12)), "--keep-snapshots", str(random.randint(1, 4)))
    return (*options, "--keep-uploads") if random.random() < 0.5 else options
