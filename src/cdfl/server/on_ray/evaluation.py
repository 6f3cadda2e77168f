"""Evaluate on the workers of a Ray cluster, and in this process while they are away: no upload waits for them."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cdfl.core import ProxySets
from cdfl.core.guard import TRIAL_SAMPLES
from cdfl.core.proxy_sets import repeated
from cdfl.on_ray.connection import RayEngine, import_ray
from cdfl.on_ray.serialization import Serialized, serialize
from cdfl.problems import ProblemInstance
from cdfl.server.on_ray.worker import FAILED, Order
from cdfl.server.upload_losses import Evaluators

SECONDS_TO_CONNECT = 60.0
SECONDS_TO_ANSWER = 60.0  # from one model to the next
SECONDS_TO_RETRY = 30.0  # after the cluster was away
SECONDS_TO_END = 10.0
# Of the driver: end soon after the head of its cluster, so that the server evaluates itself.
RAY_OPTIONS = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10"}
IDLE_SECONDS = 60.0  # after which a worker ends

logger = logging.getLogger("cdfl.server")


@contextmanager
def evaluators_on_ray(
    instance: ProblemInstance, engine: RayEngine, *, idle_seconds: float = IDLE_SECONDS
) -> Iterator[Evaluators]:
    """Yield the evaluators of a server that use a cluster. Each of its two threads has workers of its own."""
    import_ray()
    if instance.device.type != "cpu":
        raise ValueError("--evaluate-on-ray evaluates on CPUs; omit it, or use --device cpu")
    engine = replace(engine, address=engine.address or os.environ.get("RAY_ADDRESS") or "auto")
    sets = [instance.evaluator(), instance.evaluator(TRIAL_SAMPLES)]
    serialized = serialize(sets)
    drivers = [Driver((engine, serialized, idle_seconds), what) for what in ("uploads", "clusters")]
    try:
        for driver in drivers:
            driver.wait()
        uploads, clusters = drivers
        yield Evaluators(
            RemoteProxySets(instance.evaluator(), 0, uploads),
            RemoteProxySets(sets[0], 0, clusters),
            RemoteProxySets(instance.evaluator(TRIAL_SAMPLES), 1, uploads),
            RemoteProxySets(sets[1], 1, clusters),
        )
    finally:
        for driver in drivers:
            driver.close()


class RemoteProxySets:
    """Proxy sets on which models are evaluated by workers, or here; for one thread. The losses are the same."""

    def __init__(self, local: ProxySets, which: int, driver: "Driver") -> None:
        self.local, self.which, self.driver = local, which, driver

    def __call__(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the set of the cluster beside it (n,)."""
        own, parts = clusters.tolist(), list[tuple[Tensor, list[int]]]()
        for model, count in repeated(models):
            parts.append((model, own[:count]))
            own = own[count:]
        return torch.cat(self._losses(parts))

    def of_each(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the losses of n models (P,) on every set (n, K)."""
        clusters = list(range(len(self.local.sets)))
        return torch.stack(self._losses([(vector, clusters) for vector in vectors])).double()

    def _losses(self, parts: Sequence[tuple[Tensor, list[int]]]) -> list[Tensor]:
        found = self.driver.evaluate([Order(self.which, model.numpy(), clusters) for model, clusters in parts])
        return [
            torch.from_numpy(losses)
            if len(losses)
            else self.local(model.expand(len(clusters), -1), torch.tensor(clusters))
            for losses, (model, clusters) in zip(found, parts, strict=True)
        ]


class Driver:
    """The process of `cdfl.server.on_ray.driver`, started again some time after it ended. For one thread."""

    def __init__(self, given: tuple[RayEngine, Serialized, float], what: str) -> None:
        self.what = what  # that is evaluated
        self._given = given
        self._process: subprocess.Popen[bytes] | None = None
        self._is_connected = self._is_away = False
        self._tried = 0.0  # when the process was started, or ended
        self._start()

    def evaluate(self, orders: Sequence[Order]) -> list[np.ndarray]:
        """Return the losses of each order; `FAILED` for those that must be evaluated here."""
        found = [FAILED] * len(orders)
        try:
            if self._is_there():
                self._pipe.send(orders)
                while (message := self._receive()) is not None:
                    number, found[number] = message
        except (OSError, EOFError) as error:
            self._lose(error)
        return found

    def wait(self) -> None:
        """Wait until the cluster is there or cannot be used."""
        try:
            self._connect(SECONDS_TO_CONNECT)
        except (OSError, EOFError) as error:
            self._lose(error)

    def close(self) -> None:
        """End the process and its workers."""
        if self._process is not None:
            self._pipe.close()
            try:
                self._process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _is_there(self) -> bool:
        """Return whether the process is connected to the cluster; start it if it is time to."""
        seconds = time.monotonic() - self._tried
        if self._process is None and seconds > SECONDS_TO_RETRY:
            self._start()
        if self._process is None:
            return False
        if not self._is_connected and (self._pipe.poll() or seconds > SECONDS_TO_CONNECT):
            self._connect(0)
        return self._is_connected

    def _start(self) -> None:
        self._pipe, other = Pipe()
        command = [sys.executable, "-m", "cdfl.server.on_ray.driver", str(other.fileno())]
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdout=subprocess.DEVNULL,  # Ray writes there, and `cdfl serve --json` does
            pass_fds=[other.fileno()],
            env=os.environ | RAY_OPTIONS,
            start_new_session=True,
        )
        other.close()
        self._tried, self._is_connected = time.monotonic(), False
        threading.Thread(target=self._give, args=(self._pipe,), daemon=True).start()

    def _give(self, pipe: "Connection") -> None:
        """Send what the process needs. It takes seconds to start, and uploads do not wait."""
        with suppress(OSError):
            pipe.send(self._given)

    def _connect(self, seconds: float) -> None:
        self._is_connected = self._receive(seconds)
        if self._is_away:
            self._is_away = False
            logger.warning("the Ray cluster can be used again: it evaluates %s", self.what)

    def _receive(self, seconds: float = SECONDS_TO_ANSWER) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"it did not answer for {seconds:.0f} s")
        message = self._pipe.recv()
        if isinstance(message, str):
            raise ConnectionError(message)
        return message

    def _lose(self, error: Exception) -> None:
        """End the process; say so if it is the first time since the cluster was there."""
        if self._process is not None:
            self._process.kill()
        self.close()
        self._tried = time.monotonic()
        if not self._is_away:
            self._is_away = True
            why = str(error) if isinstance(error, ConnectionError | TimeoutError) and not error.errno else "it is gone"
            logger.warning("the Ray cluster cannot be used: %s; %s are evaluated here meanwhile", why, self.what)
