"""Put a server together: recover or begin, listen, serve, and stop in order."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from cdfl.core import Settings
from cdfl.problems import Progress, Task
from cdfl.server.app import create_app
from cdfl.server.auth import Access
from cdfl.server.connections import ConnectionLimit
from cdfl.server.engine import Engine
from cdfl.server.events import Notifier
from cdfl.server.records import Recovered
from cdfl.server.store import Store
from cdfl.userfile import SetupError

logger = logging.getLogger("cdfl.server")

MAX_HARM = 4.0  # limit of the harm test, unless the set-up sets one; see benchmarks/poison.py
EQUAL_CLUSTERS = (
    "%s sets separate_epochs to 0: all %d clusters begin with the same weights, so it takes many uploads until they "
    "differ, and some may never learn; pre-train them, and use a new --store"
)
LAST_SECONDS = 60  # time to answer open requests when the server stops


def open_engine(
    task: Task,
    store: Store,
    *,
    accept_all: bool = False,
    progress: Progress = lambda message: None,
    replayed: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Engine:
    """Recover the server in the store, or pre-train and begin; `options` are those of `Engine`."""
    settings = in_service(task.settings, accept_all=accept_all)
    recovered = store.recover(replayed)
    if recovered is None:
        if task.settings.pretraining.separate_epochs == 0 and task.num_clusters > 1:
            logger.warning(EQUAL_CLUSTERS, task.place or "the problem", task.num_clusters)
        state = task.initial_state(progress)
        for sentence in task.warnings(task.separation(state.cluster_models.to(task.device))):
            logger.warning("%s", sentence)
        store.begin(state, task.layout, settings)
    else:
        _check_fits(task, recovered)
        state = recovered.state
        if settings != recovered.settings:
            store.snapshot(state, settings)
    return Engine(state, task.layout, settings, store, task.evaluator(), task.evaluator(), **options)


def in_service(settings: Settings, *, accept_all: bool) -> Settings:
    """Return the settings of a server: uploads are tested for harm unless `accept_all`."""
    if accept_all:
        return settings.replace(max_harm=None)
    return settings if settings.max_harm is not None else settings.replace(max_harm=MAX_HARM)


class WebServer(uvicorn.Server):
    """uvicorn with a limit on connections, and with event streams that end when it stops."""

    def __init__(self, config: uvicorn.Config, connections: ConnectionLimit, notifier: Notifier) -> None:
        super().__init__(config)
        self.connections, self.notifier = connections, notifier
        self.on_open: Callable[[str], Any] = lambda url: None  # called with the URL
        self._watch: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Return the URL it listens on."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"{'https' if self.config.is_ssl else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def startup(self, sockets: Any = None) -> None:
        """Start to listen, and to watch idle connections."""
        await super().startup(sockets)
        if not self.should_exit:
            self._watch = asyncio.create_task(self.connections.watch())
            self.on_open(self.url)

    async def shutdown(self, sockets: Any = None) -> None:
        """End all streams, then stop as uvicorn does."""
        self.notifier.end()
        self.connections.close()
        await super().shutdown(sockets)
        if self._watch is not None:
            self._watch.cancel()


def make_server(engine: Engine, access: Access, tls_cert: str | None = None, tls_key: str | None = None) -> WebServer:
    """Return a web server for an engine; `run` it on a socket."""
    notifier, connections = Notifier(), ConnectionLimit(engine.limits, engine.metrics)
    config = uvicorn.Config(
        create_app(engine, access, notifier),
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        http=connections.protocol,  # type: ignore[arg-type]  # a function in place of a class
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(engine.limits.idle_seconds) + 1,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    server = WebServer(config, connections, notifier)
    engine.on_loss = lambda why: setattr(server, "should_exit", True)
    return server


def take_port(host: str, port: int) -> socket.socket:
    """Bind the address of a server. Call it before pre-training, which may take long."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not the name of a host"
        raise OSError(f"cannot listen on {host!r}: {why}; give --host an address of this machine") from None
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}; name another --port or --host") from None
    return taken


def serve_until_stopped(server: WebServer, engine: Engine, taken: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; then empty the queue and take a snapshot.

    Later signals change nothing: the snapshot is not interrupted.
    """

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        server.run(sockets=[taken])  # handles signals itself, and raises them once more when it is done
    finally:
        engine.close()


def _check_fits(task: Task, recovered: Recovered) -> None:
    if task.layout != recovered.layout:
        ours, theirs = dict(zip(task.layout.names, task.layout.shapes, strict=True)), recovered.layout
        stored = dict(zip(theirs.names, theirs.shapes, strict=True))
        odd = sorted(name for name in ours.keys() | stored.keys() if ours.get(name) != stored.get(name))
        raise SetupError(
            f"the problem's model is not the stored one: {', '.join(odd[:3]) or 'the order of its tensors'} differ"
            f"{'s' if len(odd) == 1 else ''}; serve the stored model, or use a new --store"
        )
    if task.num_clusters != recovered.state.num_clusters:
        there = recovered.state.num_clusters
        raise SetupError(
            f"the problem has {task.num_clusters} clusters, the store {there}; serve as many, or use a new --store"
        )
