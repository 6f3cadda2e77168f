"""A server from its parts: recover or begin, open the door, serve, and leave everything in order."""

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
from cdfl.server.connections import Door
from cdfl.server.events import Bell
from cdfl.server.journal import Recovered
from cdfl.server.limits import Limits
from cdfl.server.session import Session
from cdfl.server.setup import Progress, Setup
from cdfl.server.store import Store
from cdfl.userfile import SetupError

logger = logging.getLogger("cdfl.server")

MAX_HARM = 4.0  # of the acceptance test, where a set-up does not say: benchmarks/poison.py
EQUAL_CLUSTERS = (
    "%s names no pretraining_sets: all %d clusters begin with the same weights, so it takes many uploads until they "
    "differ, and some may never learn; to begin with clusters that differ name some data for each, and a new --store"
)
LAST_SECONDS = 60  # for answering what is under way when the server is told to stop


def open_session(
    setup: Setup,
    store: Store,
    *,
    accept_all: bool = False,
    progress: Progress = lambda message: None,
    replayed: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Session:
    """Take up what is in the store, or pre-train and begin; `options` are those of `Session`."""
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
    return Session(state, setup.layout, settings, store, setup.look(), setup.look(), **options)


def in_service(settings: Settings, *, accept_all: bool) -> Settings:
    """The settings of a server: uploads are tested for harm unless that is asked away."""
    if accept_all:
        return settings.replace(max_harm=None)
    return settings if settings.max_harm is not None else settings.replace(max_harm=MAX_HARM)


class WebServer(uvicorn.Server):
    """uvicorn with a door, and with streams that end when it does."""

    def __init__(self, config: uvicorn.Config, door: Door, bell: Bell) -> None:
        super().__init__(config)
        self.door, self.bell = door, bell
        self.on_open: Callable[[str], Any] = lambda url: None  # told where it listens
        self._watch: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"{'https' if self.config.is_ssl else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def startup(self, sockets: Any = None) -> None:
        """Open."""
        await super().startup(sockets)
        if not self.should_exit:
            self._watch = asyncio.create_task(self.door.watch())
            self.on_open(self.url)

    async def shutdown(self, sockets: Any = None) -> None:
        """Close."""
        self.bell.end()
        self.door.close()
        await super().shutdown(sockets)
        if self._watch is not None:
            self._watch.cancel()


def make_server(
    session: Session,
    access: Access,
    limits: Limits,
    tls_cert: str | None = None,
    tls_key: str | None = None,
) -> WebServer:
    """A web server for a session; `run` it on a socket."""
    bell, door = Bell(), Door(limits, session.metrics)
    config = uvicorn.Config(
        create_app(session, access, limits, bell),
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        http=door.protocol,  # type: ignore[arg-type]  # it makes one, as a class would
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(limits.idle_seconds) + 1,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    server = WebServer(config, door, bell)
    session.on_loss = lambda why: setattr(server, "should_exit", True)
    return server


def take_port(host: str, port: int) -> socket.socket:
    """An address of our own, before anything else is done: pre-training may take long."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no host can have that name"
        raise OSError(f"cannot listen on {host!r}: {why}; give --host an address of this machine") from None
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}; name another --port or --host") from None
    return taken


def serve_until_told(server: WebServer, session: Session, taken: socket.socket) -> None:
    """Serve until told to stop; then finish what is in the queue and keep a snapshot.

    To be told again means nothing, to the end of the process: what is left to do is not to be interrupted.
    """

    def stop(number: int, frame: object) -> None:  # before the server takes signals itself; later it changes nothing
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        server.run(sockets=[taken])  # takes signals itself, and raises them once more when it is done
    finally:
        session.close()


def _check_fits(setup: Setup, recovered: Recovered) -> None:
    if setup.layout != recovered.layout:
        ours, theirs = dict(zip(setup.layout.names, setup.layout.shapes, strict=True)), recovered.layout
        stored = dict(zip(theirs.names, theirs.shapes, strict=True))
        odd = sorted(name for name in ours.keys() | stored.keys() if ours.get(name) != stored.get(name))
        raise SetupError(
            f"the set-up's model is not the stored one: {', '.join(odd[:3]) or 'the order of its tensors'} differ"
            f"{'s' if len(odd) == 1 else ''}; serve the model the store was begun with, or give --store another place"
        )
    if setup.num_clusters != recovered.state.num_clusters:
        raise SetupError(
            f"the set-up has {setup.num_clusters} proxy sets, the store {recovered.state.num_clusters} clusters; "
            "expected one for each"
        )
