"""Put a server together: recover or begin, listen, serve, and stop in order."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from cdfl.core import Settings
from cdfl.server.app import create_app
from cdfl.server.auth import Access
from cdfl.server.connections import ConnectionLimit
from cdfl.server.engine import Engine
from cdfl.server.events import Notifier
from cdfl.server.limits import Limits
from cdfl.server.matrices import Matrices
from cdfl.server.metrics import Metrics
from cdfl.server.records import Recovered
from cdfl.server.setup import Progress, Setup
from cdfl.server.starting import Gate, Starting
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
    trained: Callable[[int, int], Any] = lambda done, total: None,
    replayed: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Engine:
    """Recover the server in the store, or pre-train and begin; `options` are those of `Engine`."""
    settings = in_service(setup.settings, accept_all=accept_all)
    recovered = store.recover(replayed)
    if recovered is None:
        if setup.pretraining_sets is None and setup.num_clusters > 1:
            logger.warning(EQUAL_CLUSTERS, setup.place, setup.num_clusters)
        state = setup.start(progress, trained)
        store.begin(state, setup.layout, settings)
    else:
        _check_fits(setup, recovered)
        state = recovered.state
        if settings != recovered.settings:
            store.snapshot(state, settings)
    evaluators = setup.evaluator(), setup.evaluator()
    more = {"trial": setup.evaluator(TRIAL_SAMPLES), "matrices": Matrices(setup.evaluator())}
    return Engine(state, setup.layout, settings, store, *evaluators, **more, **options)


def in_service(settings: Settings, *, accept_all: bool) -> Settings:
    """Return the settings of a server: every upload is judged unless `accept_all`."""
    return settings.replace(guard=not accept_all)


class WebServer(uvicorn.Server):
    """uvicorn with a limit on connections, and with event streams that end when it stops.

    It listens before the engine is ready, and answers 503 until `open`.
    """

    def __init__(self, config: uvicorn.Config, gate: Gate, connections: ConnectionLimit, notifier: Notifier) -> None:
        super().__init__(config)
        self.gate, self.connections, self.notifier = gate, connections, notifier
        self.listens = threading.Event()
        self.stopped = threading.Event()  # set when it must stop or has stopped
        self.failure: BaseException | None = None
        self._watch: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Return the URL it listens on."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"{'https' if self.config.is_ssl else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def open(self, engine: Engine, access: Access) -> None:
        """Serve an engine from now on; stop if it loses its store."""
        engine.on_loss = lambda why: self.stop()
        self.gate.open(create_app(engine, access, self.notifier))

    def stop(self) -> None:
        """Answer open requests, then stop."""
        self.should_exit = True
        self.stopped.set()

    async def startup(self, sockets: Any = None) -> None:
        """Start to listen, and to watch idle connections."""
        await super().startup(sockets)
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

    def wait_for_signal(self) -> None:
        """Return after SIGTERM or SIGINT, or if the server must stop. Later signals change nothing."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stopped.set())
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
    limits: Limits, metrics: Metrics, starting: Starting, tls_cert: str | None = None, tls_key: str | None = None
) -> WebServer:
    """Return a web server that is not open yet."""
    gate, notifier, connections = Gate(starting), Notifier(), ConnectionLimit(limits, metrics)
    config = uvicorn.Config(
        gate,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        http=connections.protocol,  # type: ignore[arg-type]  # a function in place of a class
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(limits.idle_seconds) + 1,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    return WebServer(config, gate, connections, notifier)


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
