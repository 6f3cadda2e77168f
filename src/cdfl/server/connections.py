"""Limits on connections: how many are open, and how long one may be idle.

uvicorn's own limit (`limit_concurrency`) refuses honest clients, too. uvicorn also waits without end for the header of
a request, however long it grows, and for a client that does not read its answer. Here a new connection takes the place
of the one that has been idle longest.
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
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

CLOSING_SECONDS = 2.0  # a peer has this long to close when the server stops; TLS would wait half a minute
MOST_HEAD = 2**16  # bytes of a header or a trailer
SPARE_FILES = 256  # open files for the store, the uploads and the libraries


class ConnectionLimit:
    """Counts connections and closes idle ones."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self._is_closing = False
        self.most = min(limits.connections, raise_file_limit(limits.connections + SPARE_FILES) - SPARE_FILES)
        self._open: dict[Connection, float] = {}  # -> time since which it waits for a request; oldest first
        metrics.connections.set_function(lambda: len(self._open))

    def protocol(self, *args: Any, **kwargs: Any) -> "Connection":
        """Return the protocol of one connection, for uvicorn."""
        return Connection(self, *args, **kwargs)

    def enter(self, connection: "Connection") -> None:
        """Add a connection; if there are too many, close the one that has been idle longest."""
        self.waits(connection)
        if len(self._open) > self.most:
            self._close(next((other for other in self._open if not other.is_busy), connection))

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
        """Close connections that wait too long for a whole request, or for their client to read."""
        for connection, since in list(self._open.items()):
            idle = not connection.is_busy and now - since > self.limits.idle_seconds
            done = self._is_closing and connection.is_done and now - since > CLOSING_SECONDS
            stalled = now - (connection.stalled_since or now) > self.limits.stall_seconds
            if idle or done or stalled:
                self._close(connection)

    def _close(self, connection: "Connection") -> None:
        self.leave(connection)  # now, because the event loop reports it later
        connection.transport.abort()


class Connection(HttpToolsProtocol):
    """uvicorn's protocol for one connection; it tells the limit what it does."""

    def __init__(self, limit: ConnectionLimit, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limit = limit
        self.stalled_since: float | None = None  # time since which the peer does not read
        self._head = 0  # bytes since the last piece of a body or end of a request
        self._got_on = False

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to answer or send."""
        return not self.is_busy and self.transport.get_write_buffer_size() == 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register with the limit."""
        super().connection_made(transport)
        self.limit.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister."""
        super().connection_lost(exc)
        self.limit.leave(self)

    def data_received(self, data: bytes) -> None:
        """Pass data on; refuse a header that is too long, which the parser does not."""
        self._got_on = False
        super().data_received(data)
        self._head = 0 if self._got_on else self._head + len(data)
        if self._head > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The header is longer than {MOST_HEAD} bytes.")

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

    def pause_writing(self) -> None:
        """Note that the peer reads too slowly."""
        super().pause_writing()
        self.stalled_since = self.loop.time()

    def resume_writing(self) -> None:
        """Note that the peer reads again."""
        super().resume_writing()
        self.stalled_since = None


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
