"""Put a server together: recover or begin, listen, serve, and stop in order."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from cdfl.core import Settings
from cdfl.server.app import create_app
from cdfl.server.auth import Access
from cdfl.server.connections import ConnectionLimit
from cdfl.server.engine import Engine
from cdfl.server.events import Notifier
from cdfl.server.records import Recovered
from cdfl.server.setup import Progress, Setup
from cdfl.server.store import Store
from cdfl.userfile import SetupError

logger = logging.getLogger("cdfl.server")

EQUAL_CLUSTERS = (
    "%s names no pretraining_sets: all %d clusters begin with the same weights, so it takes many uploads until they "
    "differ, and some may never learn; name pretraining_sets, and use a new --store"
)
TRIAL_SAMPLES = 32  # of each proxy set, on which the guard tries steps
LAST_SECONDS = 60  # time to answer open requests when the server stops


def open_engine(
    setup: Setup,
    store: Store,
    *,
    accept_all: bool = False,
    progress: Progress = lambda message: None,
    replayed: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Engine:
    """Recover the server in the store, or pre-train and begin; `options` are those of `Engine`."""
    settings = in_service(setup.settings, accept_all=accept_all)
    recovered = store.recover(replayed)
    if recovered is None:
        if setup.pretraining_sets is None and setup.num_clusters > 1:
            logger.warning(EQUAL_CLUSTERS, setup.place, setup.num_clusters)
        state = setup.start(progress)
        store.begin(state, setup.layout, settings)
    else:
        _check_fits(setup, recovered)
        state = recovered.state
        if settings != recovered.settings:
            store.snapshot(state, settings)
    evaluators = [setup.evaluator(), setup.evaluator()]
    return Engine(state, setup.layout, settings, store, *evaluators, trial=setup.evaluator(TRIAL_SAMPLES), **options)


def in_service(settings: Settings, *, accept_all: bool) -> Settings:
    """Return the settings of a server: every upload is judged unless `accept_all`."""
    return settings.replace(guard=not accept_all)


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


def _check_fits(setup: Setup, recovered: Recovered) -> None:
    if setup.layout != recovered.layout:
        ours, theirs = dict(zip(setup.layout.names, setup.layout.shapes, strict=True)), recovered.layout
        stored = dict(zip(theirs.names, theirs.shapes, strict=True))
        odd = sorted(name for name in ours.keys() | stored.keys() if ours.get(name) != stored.get(name))
        raise SetupError(
            f"the set-up's model is not the stored one: {', '.join(odd[:3]) or 'the order of its tensors'} differ"
            f"{'s' if len(odd) == 1 else ''}; serve the stored model, or use a new --store"
        )
    if setup.num_clusters != recovered.state.num_clusters:
        raise SetupError(
            f"the set-up has {setup.num_clusters} proxy sets, the store {recovered.state.num_clusters} clusters; "
            "expected one for each"
        )
