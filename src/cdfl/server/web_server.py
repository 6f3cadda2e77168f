"""The web server: listen, answer 503 until the engine is ready, serve it, and stop in order."""

import asyncio
import signal
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from cdfl.server.acceptor import Acceptor
from cdfl.server.app import create_app
from cdfl.server.auth import Access
from cdfl.server.connection_limit import ConnectionLimit
from cdfl.server.engine import Engine
from cdfl.server.events import Notifier
from cdfl.server.host_check import HostCheck
from cdfl.server.limits import Limits
from cdfl.server.metrics import Metrics
from cdfl.server.readiness import Gate, Starting
from cdfl.server.tls import Tls
from cdfl.wire import VERSION

LAST_SECONDS = 60  # time to answer open requests when the server stops


class WebServer(uvicorn.Server):
    """uvicorn with a limit on connections, and with event streams that end when it stops.

    It listens before the engine is ready, and answers 503 until `open`.
    """

    def __init__(
        self, config: uvicorn.Config, gate: Gate, connections: ConnectionLimit, notifier: Notifier, tls: Tls | None
    ) -> None:
        super().__init__(config)
        self.gate, self.connections, self.notifier, self.tls = gate, connections, notifier, tls
        self.listens = threading.Event()
        self.stopped = threading.Event()  # set when it must stop or has stopped
        self.failure: BaseException | None = None
        self._watch: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Return the URL it listens on."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def open(self, engine: Engine, access: Access) -> None:
        """Serve an engine from now on; stop if it loses its store."""
        engine.on_loss = lambda why: self.stop()
        self.gate.open(create_app(engine, access, self.notifier))

    def stop(self) -> None:
        """Answer open requests, then stop."""
        self.should_exit = True
        self.stopped.set()

    async def startup(self, sockets: Any = None) -> None:
        """Start to listen, and to watch idle connections. The sockets are accepted by `Acceptor`, not by asyncio."""
        await self.lifespan.startup()
        make = partial(self.connections.protocol, self.config, self.server_state, self.lifespan.state)
        self.servers = [Acceptor(sockets[0], make, self.connections, self.tls)]  # type: ignore[list-item]
        self.started = True
        if not self.should_exit:
            self._watch = asyncio.create_task(self.connections.watch())
            self.listens.set()

    async def shutdown(self, sockets: Any = None) -> None:
        """End all streams, then stop as uvicorn does."""
        self.notifier.end()
        self.connections.close()
        await super().shutdown(sockets)
        if self._watch is not None:
            self._watch.cancel()

    @contextmanager
    def serving(self, taken: socket.socket) -> Iterator[None]:
        """Serve in a thread while the block runs; then answer open requests and stop."""
        self._thread = threading.Thread(target=self._run, args=(taken,), name="cdfl-http")
        self._thread.start()
        try:
            while not (self.listens.wait(0.1) or self.stopped.is_set()):
                pass
            if self.failure is not None:
                raise self.failure
            yield
        finally:
            self.finish()

    def finish(self) -> None:
        """Stop, and wait until open requests are answered. The engine must still be there."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def stop_on_signals(self) -> None:
        """From now on, SIGTERM and SIGINT stop the server; a second one changes nothing."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stopped.set())

    def wait_until_stopped(self) -> None:
        """Return after a signal, or if the server must stop."""
        while not self.stopped.wait(0.5):  # a signal that another thread received is handled here
            pass

    def _run(self, taken: socket.socket) -> None:
        try:
            self.run(sockets=[taken])
        except BaseException as error:
            self.failure = error
        finally:
            self.stopped.set()


def make_server(
    limits: Limits, metrics: Metrics, starting: Starting, tls: Tls | None = None, hosts: Collection[str] = ()
) -> WebServer:
    """Return a web server that is not open yet; it answers only requests for `hosts`, if there are any."""
    gate, notifier, connections = Gate(starting), Notifier(), ConnectionLimit(limits, metrics)
    config = uvicorn.Config(
        HostCheck(gate, hosts),
        http=connections.protocol,  # type: ignore[arg-type]  # a function in place of a class
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[(VERSION, "1")],
        timeout_keep_alive=int(limits.idle_seconds) + 1,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    return WebServer(config, gate, connections, notifier, tls)
