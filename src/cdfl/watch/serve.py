"""Serve the page of runs on this machine."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn

from cdfl.watch.app import create_watch_app


def serve_runs(
    runs: Sequence[tuple[str, Path]], port: int, on_open: Callable[[str], Any], *, any_port: bool = False
) -> None:
    """Serve some runs, as (name, folder), until Ctrl-C; `any_port` takes another port if this one is taken."""
    with _listening(port, any_port=any_port) as taken:
        config = uvicorn.Config(create_watch_app(runs), log_level="warning", lifespan="off", access_log=False)
        server = _Server(config)
        server.on_open = lambda: on_open(f"http://127.0.0.1:{taken.getsockname()[1]}/")
        with suppress(KeyboardInterrupt):
            server.run(sockets=[taken])


class _Server(uvicorn.Server):
    on_open: Callable[[], Any] = lambda: None

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        await asyncio.to_thread(self.on_open)

    async def shutdown(self, sockets: Any = None) -> None:
        self.force_exit = True  # streams of running runs would go on
        await super().shutdown(sockets)


def _listening(port: int, *, any_port: bool) -> socket.socket:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(("127.0.0.1", port))
    except OSError as error:
        if not any_port:
            taken.close()
            raise OSError(f"cannot listen on port {port}: {error.strerror}; name another --port") from None
        taken.bind(("127.0.0.1", 0))
    return taken
