"""Connections: so many, and none that only sits there.

uvicorn knows no limit but one that turns honest clients away as well (`limit_concurrency`), waits without end for the
header of a request, however long it grows, and for a client that does not read its answer. Here the connection that has
been idle longest makes room for a new one.
"""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cdfl.server.limits import Limits
from cdfl.server.metrics import Metrics

logger = logging.getLogger("cdfl.server")

try:
    import resource
except ImportError:  # not on this system
    resource = None  # type: ignore[assignment]

CLOSING_SECONDS = 2.0  # for a peer to say goodbye when the server stops: TLS waits half a minute for that
MOST_HEAD = 2**16  # bytes before the first of a body, and after its last: header, trailer
SPARE_FILES = 256  # for the store, the uploads and the libraries


class Door:
    """Counts connections and closes those that waste their place."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self._is_closing = False
        self.most = min(limits.connections, raise_file_limit(limits.connections + SPARE_FILES) - SPARE_FILES)
        self._open: dict[Connection, float] = {}  # -> when it began to wait for a request; oldest first
        metrics.connections.set_function(lambda: len(self._open))

    def protocol(self, *args: Any, **kwargs: Any) -> "Connection":
        """A protocol for one connection, as uvicorn makes them."""
        return Connection(self, *args, **kwargs)

    def enter(self, connection: "Connection") -> None:
        """A new connection; if there are too many, another one goes."""
        self.waits(connection)
        if len(self._open) > self.most:
            self._close(next((other for other in self._open if not other.is_busy), connection))

    def waits(self, connection: "Connection") -> None:
        """A connection waits for its next request from now on."""
        self._open.pop(connection, None)
        self._open[connection] = connection.loop.time()

    def leave(self, connection: "Connection") -> None:
        """A connection is gone."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """Nobody is waited for any more but those who are being answered."""
        self._is_closing = True

    async def watch(self) -> None:
        """Close what has waited too long, again and again."""
        while True:
            await asyncio.sleep(min(1.0, self.limits.idle_seconds / 4))
            self.sweep(asyncio.get_running_loop().time())

    def sweep(self, now: float) -> None:
        """Close what has waited too long: for a request, whatever trickles in, or for a reader."""
        for connection, since in list(self._open.items()):
            idle = not connection.is_busy and now - since > self.limits.idle_seconds
            done = self._is_closing and connection.is_done and now - since > CLOSING_SECONDS
            stalled = now - (connection.stalled_since or now) > self.limits.stall_seconds
            if idle or done or stalled:
                self._close(connection)

    def _close(self, connection: "Connection") -> None:
        self.leave(connection)  # now, not when the event loop comes round to it
        connection.transport.abort()


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, which tells the door what it does."""

    def __init__(self, door: Door, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.door = door
        self.stalled_since: float | None = None  # the peer does not read
        self._head = 0  # bytes of which nothing came yet: no body, no end
        self._got_on = False

    @property
    def is_busy(self) -> bool:
        """Is a request being answered?"""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_done(self) -> bool:
        """Is nothing left to be answered or sent?"""
        return not self.is_busy and self.transport.get_write_buffer_size() == 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Come in."""
        super().connection_made(transport)
        self.door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Go."""
        super().connection_lost(exc)
        self.door.leave(self)

    def data_received(self, data: bytes) -> None:
        """Take what came; the parser itself would keep a header of any length."""
        self._got_on = False
        super().data_received(data)
        self._head = 0 if self._got_on else self._head + len(data)
        if self._head > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The header is longer than {MOST_HEAD} bytes.")

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come."""
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come to its end."""
        self._got_on = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        is_last = not self.pipeline  # of the requests that have come
        super().on_response_complete()
        if is_last and self.expect_100_continue and self.cycle.more_body:
            self.transport.close()  # its body was not asked for: nobody knows whether it comes all the same
        elif self in self.connections:
            self.door.waits(self)

    def pause_writing(self) -> None:
        """The peer reads too slowly for what waits to be sent."""
        super().pause_writing()
        self.stalled_since = self.loop.time()

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        self.stalled_since = None


def raise_file_limit(wanted: int) -> int:
    """Ask for so many open files; returns how many there may be."""
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if most < wanted:
        logger.warning("only %d files may be open (ulimit -n), so fewer connections are", most)
    return wanted if soft == resource.RLIM_INFINITY else max(soft, most)
