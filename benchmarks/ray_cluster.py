"""A Ray cluster on this machine for tests and benchmarks: its nodes are processes, started and stopped here."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.processes import family
from cdfl.on_ray.connection import QUIET

MB = 2**20
SECONDS = 60  # to start or to end


class RayCluster:
    """A head and more nodes. Run commands that use it with `python -m benchmarks.on_loopback`."""

    def __init__(self, *cores: int, store_mb: int = 200) -> None:
        self.cores = cores  # of the head and of each further node
        self.store_mb = store_mb
        self.folder = tempfile.mkdtemp(prefix="ray")  # short: sockets lie in it
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        # Nodes and drivers share a token; this process is a driver, and Ray reads its token once.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ |= {"RAY_AUTH_MODE": "token"} | QUIET
        self.nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for cores in self.cores:
                self.add(cores)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in reversed(self.nodes):
            self.stop(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self) -> str:
        """What a driver connects to."""
        return f"127.0.0.1:{self.port}"

    def add(self, cores: int) -> "subprocess.Popen[bytes]":
        """Start a node, the head first, and wait until it is there."""
        where = ["--address", self.address] if self.nodes else ["--head", f"--port={self.port}"]
        where += ["--include-dashboard=false", f"--temp-dir={self.folder}"] if not self.nodes else []
        sizes = [f"--num-cpus={cores}", f"--object-store-memory={self.store_mb * MB}"]
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray] if Path(ray).exists() else [sys.executable, "-m", "ray.scripts.scripts"]
        env = os.environ | {"RAY_worker_niceness": "0"}  # else workers yield to every other process
        log = Path(self.folder, f"node-{len(self.nodes)}.log")
        with log.open("wb") as out:
            node = subprocess.Popen(
                [*command, "start", *where, *sizes, "--disable-usage-stats", "--block"], env=env, stdout=out, stderr=out
            )
        self.nodes.append(node)
        until = time.monotonic() + SECONDS
        while b"Ray runtime started" not in log.read_bytes():
            if node.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"a Ray node did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        return node

    def stop(self, node: "subprocess.Popen[bytes]", *, kill: bool = False) -> None:
        """End a node, or kill all its processes at once, as when its machine is switched off."""
        members = family(node.pid)
        if not kill:
            node.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                node.wait(SECONDS)
        for member in members:
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        node.wait()
        self.nodes.remove(node)
