"""Connect to a Ray cluster, or start one on this machine."""

import importlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cdfl.argument_checks import check_number

INSTALL = "this needs Ray; install it with: pip install 'cdfl[ray]'"
# Ray's own defaults are to report its usage to its makers, and to warn about environment variables of GPUs.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

SECONDS_TO_CONNECT = 5.0


@dataclass(frozen=True)
class RayEngine:
    """Where to train: on the workers of a Ray cluster.

    Args:
        address: Of the cluster's head, as "host:port"; "local" starts a cluster on this machine for this run. Default:
            $RAY_ADDRESS; else the cluster that runs on this machine; else as "local".
        workers: The number of processes that train. Default: as many as the cluster has GPUs, or cores, for.
        cores: CPU cores of each worker.

    """

    address: str | None = None
    workers: int | None = None
    cores: int = 1

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_number("workers", self.workers, 1, whole=True)
        check_number("cores", self.cores, 1, whole=True)


def find_engine(name: "str | RayEngine", **options: Any) -> RayEngine | None:
    """Return the engine of this name, None for the local one; raise if it does not exist or is not installed."""
    if isinstance(name, RayEngine):
        import_ray()
        return name
    given = {option: value for option, value in options.items() if value is not None}
    if name == "ray":
        import_ray()
        return RayEngine(**given)
    if name != "local":
        raise ValueError(f"there is no engine {name!r}; there are local and ray")
    if given:
        raise ValueError(f"{', '.join(given)} is for the engine `ray` only; use --engine ray too, or omit it")
    return None


def import_ray() -> Any:
    """Return the module `ray`; raise `ModuleNotFoundError` with the line that installs it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(INSTALL) from None


@contextmanager
def connected(engine: RayEngine) -> Iterator[Any]:
    """Connect to the cluster of an engine, and yield the module `ray`. A connection that exists is used and kept."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    _check_reachable(engine.address or os.environ.get("RAY_ADDRESS", ""))
    with _same_signals():
        try:
            ray.init(address=engine.address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            line = str(error).strip().partition("\n")[0]
            raise ValueError(_unreachable(engine.address or "its usual address", line)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise ValueError if nobody listens at host:port: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "://" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise ValueError(_unreachable(address, str(error))) from error


def _unreachable(address: str, why: str) -> str:
    return (
        f"cannot connect to the Ray cluster at {address}: {why}; start one with `ray start --head` and give its "
        "host:port, or use the address local"
    )


@contextmanager
def _same_signals() -> Iterator[None]:
    """Undo what Ray does to SIGTERM: a run answers it as it does without Ray."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
