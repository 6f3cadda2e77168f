"""`cdfl serve` in its own process, on SQLite and a folder by default, with its metrics and its use of the machine."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.processes import busy_seconds, cpu_seconds, resident_mb
from cdfl.cli.stores import open_tokens
from cdfl.server.store import Store

START_SECONDS = 300.0  # the paper's CNN is pre-trained a little
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Sample:
    """What a server used at one moment."""

    time: float
    memory: float  # MB resident
    server: float  # CPU seconds of the server so far
    clients: float  # of this process
    machine: float  # of everything on this machine


class Server:
    """`with Server(...) as server:` serves until the block ends. Every client has a token.

    `database` is the URL of a PostgreSQL that servers share; their blobs are beside their folders.
    """

    def __init__(self, setup: Path, folder: Path, clients: int, *options: str, database: str | None = None) -> None:
        self.setup, self.folder = setup, folder
        self.log = folder / "server.log"
        self.place = str(folder / "store") if database is None else database
        self.blobs = None if database is None else str(folder.parent / "blobs")
        with open_tokens(self.place, new=True) as tokens:
            self.tokens = [tokens.create(f"client-{number}") for number in range(clients)]
        command = [str(Path(sys.executable).with_name("cdfl")), "serve", str(setup), "--port", "0"]
        where = ["--store", self.place, *(["--blobs", self.blobs] if self.blobs else [])]
        self._command = [*command, *where, *options]

    def __enter__(self) -> "Server":
        given = os.environ.get("CDFL_OPERATOR_TOKEN") or secrets.token_urlsafe()  # the metrics are for operators
        environment = os.environ | {"COLUMNS": "200", "CDFL_OPERATOR_TOKEN": given}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(self._command, stderr=log, env=environment)
        try:
            self.url = self._wait_until_open()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self.port = int(self.url.rpartition(":")[2])
        headers = {"Authorization": f"Bearer {given.partition(',')[0]}"}
        self._http = httpx.Client(base_url=self.url, timeout=60, headers=headers, verify=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
        if code != 0:
            raise RuntimeError(f"the server ended with status {code}; it said:\n{self.said}")

    @property
    def said(self) -> str:
        """The last words on its screen."""
        return self.log.read_text()[-2000:]

    @cached_property
    def clusters(self) -> np.ndarray:
        """The cluster models at the first access (K, P)."""
        with Store.open(self.place, self.blobs, own=False) as store:
            recovered = store.recover()
        if recovered is None:
            raise RuntimeError("the store is empty; is this the server's?")
        return recovered.state.cluster_models.numpy()

    def sample(self) -> Sample:
        """What it has used so far."""
        pid = self._process.pid
        own = time.process_time()
        return Sample(time.monotonic(), resident_mb(pid), cpu_seconds(pid), own, busy_seconds())

    def metrics(self) -> dict[str, float]:
        """All counters, as `name` or `name{label}`."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self._http.get("/metrics").text):
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    label = ",".join(sample.labels.values())
                    found[f"{sample.name}{{{label}}}" if label else sample.name] = sample.value
        return found

    def _wait_until_open(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(r"serving on (\S+), epoch", self.log.read_text())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start; it said:\n{self.said}")
            time.sleep(0.05)
        return found.group(1)
