"""One budget for what a peer can take: sockets, handshakes, requests, bytes that wait to be parsed, sent or read.

The server accepts its connections itself, so that a socket counts from the moment it is accepted; asyncio would report
a TLS connection only after its handshake. If there are too many, the one that has been idle longest is closed, and
honest clients find room. A connection holds at most `CONNECTION_BYTES` of memory:

- one request is parsed at a time, and at most `MOST_WAITING` wait behind it;
- a header has at most `MOST_HEAD` bytes, a body is read in pieces and written to disk;
- a reply is sent in pieces of `PIECE` bytes, each when the one before has left.

The models behind these pieces have a budget of their own, `ReplyLimit`. Requests of connections on which no client has
authenticated start at `strangers_per_second`, all together.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from asyncio import sslproto
from collections import deque
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cdfl.server.limits import Limits, Pace
from cdfl.server.metrics import Metrics

logger = logging.getLogger("cdfl.server")

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

CLOSING_SECONDS = 2.0  # a peer has this long to close when the server stops; TLS would wait half a minute
MOST_HEAD = 2**14  # bytes of a header or a trailer
MOST_WAITING = 16  # requests of one connection that wait for the one before to be answered
PIECE = 2**16  # bytes that are read, written or sent at once
CONNECTION_BYTES = 8 * PIECE  # what a connection may hold: read, parsed, to be written to disk, to be sent, and TLS
SPARE_FILES = 256  # open files for the store, the uploads and the libraries
NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE = 0.1  # seconds until the next attempt to accept if there are no files left


class ConnectionLimit:
    """Counts sockets from the moment they are accepted, and closes those that are idle."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.replies = ReplyLimit(limits.reply_bytes)
        self.strangers = Strangers(limits.strangers_per_second)
        self.most = min(limits.connections, raise_file_limit(limits.connections + SPARE_FILES) - SPARE_FILES)
        self._is_closing = False
        self._handshakes: dict[socket.socket, float] = {}  # -> time since which it shakes hands; oldest first
        self._open: dict[Connection, float] = {}  # -> time since which it waits for a request; oldest first
        metrics.connections.set_function(lambda: len(self))

    def __len__(self) -> int:
        return len(self._handshakes) + len(self._open)

    def protocol(self, *args: Any, **kwargs: Any) -> "Connection":
        """Return the protocol of one connection, for uvicorn."""
        return Connection(self, *args, **kwargs)

    def accepted(self, accepted: socket.socket, now: float) -> None:
        """Count a socket; if there are too many, close the one that has been idle longest."""
        self._handshakes[accepted] = now
        if len(self._handshakes) > self.limits.handshakes:
            self._shut(next(iter(self._handshakes)))
        if len(self) > self.most:
            self._close_idlest()

    def is_over(self, accepted: socket.socket) -> None:
        """Note that a handshake has ended, with a connection or without."""
        self._handshakes.pop(accepted, None)

    def enter(self, connection: "Connection") -> None:
        """Add a connection; if there are too many, close the one that has been idle longest."""
        self.waits(connection)
        if len(self) > self.most + 1:  # its own handshake is counted until `is_over`
            self._close_idlest()

    def waits(self, connection: "Connection") -> None:
        """Note that a connection waits for its next request."""
        self._open.pop(connection, None)
        self._open[connection] = connection.loop.time()

    def leave(self, connection: "Connection") -> None:
        """Remove a connection."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """From now on, close every connection once it is answered."""
        self._is_closing = True

    async def watch(self) -> None:
        """Close connections that wait too long, until cancelled."""
        while True:
            await asyncio.sleep(min(1.0, self.limits.idle_seconds / 4))
            self.sweep(asyncio.get_running_loop().time())

    def sweep(self, now: float) -> None:
        """Close connections that wait too long for a whole request, or for their peer to read."""
        for connection, since in list(self._open.items()):
            idle = not connection.is_busy and now - since > self.limits.idle_seconds
            done = self._is_closing and connection.is_done and now - since > CLOSING_SECONDS
            if idle or done or connection.reads_too_slowly(now):
                self._close(connection)

    def _close_idlest(self) -> None:
        idle = next((other for other in self._open if not other.is_busy), None)
        shaking = next(iter(self._handshakes), None)
        if shaking is not None and (idle is None or self._handshakes[shaking] <= self._open[idle]):
            self._shut(shaking)
        elif idle is not None:
            self._close(idle)
        elif self._open:  # all are busy: the newest must go
            self._close(next(reversed(self._open)))

    def _close(self, connection: "Connection") -> None:
        self.leave(connection)  # now, because the event loop reports it later
        connection.transport.abort()

    def _shut(self, accepted: socket.socket) -> None:
        """End a handshake: its transport reads the end of the stream and closes the socket."""
        self.is_over(accepted)
        with contextlib.suppress(OSError):
            accepted.shutdown(socket.SHUT_RDWR)


class ReplyLimit:
    """The models that are being sent: at most one to a client, and so many bytes together.

    A new one takes the place of the one whose peer has not read for the longest time.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._open: dict[Connection, tuple[str, int]] = {}  # -> client, bytes; the one that was read last is last

    def begin(self, connection: "Connection", client_id: str, size: int) -> None:
        """Count a reply before it is sent."""
        for other, (owner, _) in list(self._open.items()):
            if owner == client_id and other is not connection:
                self._abort(other)
        self._open[connection] = (client_id, size)
        self.bytes += size
        while self.bytes > self.most_bytes and len(self._open) > 1:
            self._abort(next(iter(self._open)))

    def progress(self, connection: "Connection") -> bool:
        """Note that the peer has read; return whether the reply has not been given up."""
        if connection not in self._open:
            return False
        self._open[connection] = self._open.pop(connection)
        return True

    def end(self, connection: "Connection") -> None:
        """Count a reply no more."""
        _, size = self._open.pop(connection, ("", 0))
        self.bytes -= size

    def _abort(self, connection: "Connection") -> None:
        self.end(connection)
        connection.transport.abort()


class Strangers:
    """Starts the requests of connections on which nobody has authenticated, a few at a time and in turn."""

    def __init__(self, rate: float) -> None:
        self._pace = Pace(rate, burst=max(1.0, rate / 10))
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def admit(self, start: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Start a request now, or when its turn comes."""
        self._waiting.append(start)
        if self._timer is None:
            self._start(loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._waiting:
            wait = self._pace.take(loop.time())
            if wait > 0:
                self._timer = loop.call_later(wait, self._start, loop)
                return
            self._waiting.popleft()()


class _Counted:
    """A transport that counts what is written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write."""
        self.written += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """uvicorn's protocol for one connection, within the budget."""

    def __init__(self, limit: ConnectionLimit, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limit = limit
        self.is_known = False  # a client has authenticated on it
        self.certified: str | None = None  # the name in the peer's certificate, if one is asked for
        self._head = 0  # bytes since the last piece of a body or end of a request
        self._got_on = False
        self._slow_since: tuple[float, int] | None = None  # when bytes began to wait for the peer, and what it had read

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to answer or send."""
        return not self.is_busy and self.transport.get_write_buffer_size() == 0

    def reads_too_slowly(self, now: float) -> bool:
        """Return whether the peer has not read for a while, or reads below the least rate. Called every second."""
        waiting: int = self.transport.get_write_buffer_size()
        read: int = self.transport.written - waiting  # type: ignore[attr-defined]
        if waiting == 0:
            self._slow_since = None
            return False
        since, read_then = self._slow_since = self._slow_since or (now, read)
        behind = now - since - (read - read_then) / self.limit.limits.least_rate
        return behind > self.limit.limits.stall_seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register with the limit."""
        super().connection_made(transport)
        self.transport = _Counted(transport)  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=PIECE)
        with contextlib.suppress(AttributeError):  # asyncio reads up to 256 kB at once
            transport.max_size = PIECE  # type: ignore[attr-defined]
        self.certified = _common_name(transport)
        self.limit.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister."""
        super().connection_lost(exc)
        self.pipeline.clear()
        self.limit.leave(self)
        self.limit.replies.end(self)

    def data_received(self, data: bytes) -> None:
        """Pass data on; refuse a header that is too long, which the parser does not."""
        self._got_on = False
        super().data_received(data)
        self._head = 0 if self._got_on else self._head + len(data)
        if self._head > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The header is longer than {MOST_HEAD} bytes.")

    def on_message_begin(self) -> None:
        """Begin a request; too many that wait end the connection, and the parsing of what has come."""
        if len(self.pipeline) >= MOST_WAITING:
            raise ValueError(f"more than {MOST_WAITING} requests wait")
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def on_body(self, body: bytes) -> None:
        """Note a piece of a body."""
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        self._got_on = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        is_last = not self.pipeline  # of the requests that have come
        super().on_response_complete()
        if is_last and self.expect_100_continue and self.cycle.more_body:
            self.transport.close()  # the client may or may not send the body, so the next request cannot be found
        elif self in self.connections:
            self.limit.waits(self)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start to answer a request; strangers take turns."""
        if self.is_known:
            super()._start_asgi_task(cycle, app)
            return

        def start() -> None:
            if not self.transport.is_closing():
                super(Connection, self)._start_asgi_task(cycle, app)

        self.limit.strangers.admit(start, self.loop)


class Listener:
    """Accepts connections for uvicorn, in place of asyncio's server."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        limit: ConnectionLimit,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.sockets = [listening]
        self._make, self._limit, self._tls = make, limit, tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = Pace(1 / 60, burst=1.0)
        listening.setblocking(False)
        if tls is not None:  # otherwise asyncio's buffer takes 256 kB of memory for every handshake
            sslproto.SSLProtocol.max_size = PIECE
        self._loop = asyncio.get_running_loop()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more."""
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        """Wait for handshakes to end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._accepting, *self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self.sockets[0])
            except OSError as error:
                if error.errno in NO_FILES and self._log.take(self._loop.time()) == 0:
                    logger.warning("no connection can be accepted: %s; raise ulimit -n", error.strerror)
                await asyncio.sleep(PAUSE if error.errno in NO_FILES else 0)  # otherwise the peer is gone already
                continue
            self._limit.accepted(accepted, self._loop.time())
            task = self._loop.create_task(self._connect(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        """Shake hands, and hand the connection to its protocol. Failures are those of the peer."""
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": self._tls(), "ssl_handshake_timeout": self._limit.limits.handshake_seconds}
        try:
            await self._loop.connect_accepted_socket(self._make, accepted, **options)
        except (OSError, asyncio.CancelledError):  # ssl.SSLError and TimeoutError are OSErrors
            accepted.close()
        finally:
            self._limit.is_over(accepted)


def raise_file_limit(wanted: int) -> int:
    """Raise the limit of open files; return the limit."""
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if most < wanted:
        logger.warning(
            "only %d files may be open (ulimit -n), which limits the number of connections; raise ulimit -n for more",
            most,
        )
    return wanted if soft == resource.RLIM_INFINITY else max(soft, most)


def _common_name(transport: asyncio.Transport) -> str | None:
    """Return the common name in the peer's certificate; None if none was asked for."""
    certificate = transport.get_extra_info("peercert") or {}
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return names[-1] if names else None
