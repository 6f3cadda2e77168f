"""One budget for what a peer can take: sockets, handshakes, requests, bytes that wait to be parsed, sent or read.

A socket counts from the moment it is accepted (`Acceptor`). If there are too many, one of the address that has most is
closed, the idlest first, and honest clients find room. A connection holds at most `CONNECTION_BYTES` of memory:

- one request is parsed at a time, and at most `MOST_WAITING` wait behind it;
- a header has at most `MOST_HEAD` bytes, a body is read in pieces and written to disk;
- a reply is sent in pieces of `PIECE` bytes, each when the one before has left.

The models behind these pieces have a budget of their own, `ReplyLimit`. A request starts at once only if the one before
it on its connection was a client's. All others, and TLS handshakes, start at a rate, and addresses take `Turns`.
"""

import asyncio
import logging
import math
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cdfl.server.byte_limits import ReplyLimit
from cdfl.server.limits import Limits
from cdfl.server.metrics import Metrics
from cdfl.server.rate_limits import Turns

logger = logging.getLogger("cdfl.server")

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

CLOSING_SECONDS = 2.0  # a peer has this long to close when the server stops; TLS would wait half a minute
MOST_HEAD = 2**14  # bytes of a header or a trailer
MOST_WAITING = 4  # requests of one connection that wait for the one before to be answered
PIECE = 2**16  # bytes that are read, written or sent at once
CONNECTION_BYTES = 8 * PIECE  # what a connection may hold: read, parsed, to be written to disk, to be sent, and TLS
SPARE_FILES = 256  # open files for the store, the uploads and the libraries
GRACE_SECONDS = 1.0  # a new connection may wait this long for its first request before it counts as idle


class ConnectionLimit:
    """Counts sockets from the moment they are accepted, and closes one of the peer that has most if there are too many.

    A peer is an address. Of its connections the one goes that has been idle longest, for a second at least; if there is
    none, the oldest whose request is no client's; then another one that waits; then the newest.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.replies = ReplyLimit(limits.reply_bytes)
        self.strangers = Turns(limits.strangers_per_second)
        self.handshakes = Turns(limits.handshakes_per_second)
        self.most = min(limits.connections, raise_file_limit(limits.connections + SPARE_FILES) - SPARE_FILES)
        self._is_closing = False
        self._peers: dict[str, _Peer] = {}
        self._size = self._num_shaking = 0
        metrics.connections.set_function(lambda: self._size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator["Connection"]:
        """Iterate over all connections that have shaken hands."""
        return (connection for peer in list(self._peers.values()) for connection in [*peer.idle, *peer.busy])

    def protocol(self, *args: Any, **kwargs: Any) -> "Connection":
        """Return the protocol of one connection, for uvicorn."""
        return Connection(self, *args, **kwargs)

    def accepted(self, address: str, accepted: socket.socket, give_up: Callable[[], Any]) -> None:
        """Count a socket that shakes hands; `give_up` ends that."""
        self._peer(address).shaking[accepted] = give_up
        self._size += 1
        self._num_shaking += 1
        if self._num_shaking > self.limits.handshakes:
            most = max(self._peers.values(), key=lambda peer: len(peer.shaking))
            self._give_up_handshake(most, next(iter(most.shaking)))
        elif self._size > self.most:
            self._close_one(accepted)

    def shook(self, address: str, accepted: socket.socket | None) -> None:
        """Note that a handshake has ended, with a connection or without."""
        peer = self._peers.get(address)
        if peer is not None and accepted is not None and peer.shaking.pop(accepted, None) is not None:
            self._num_shaking -= 1
            self.handshakes.leave(address, accepted)
            self._count_out(peer)

    def enter(self, connection: "Connection") -> None:
        """Add a connection; if there are too many, close one."""
        self._peer(connection.address).idle[connection] = connection.loop.time()
        self._size += 1
        self.shook(connection.address, connection.accepted)
        if self._size > self.most:
            self._close_one(connection)

    def works(self, connection: "Connection") -> None:
        """Note that a request has come on a connection."""
        peer = self._peers.get(connection.address)
        if peer is not None and peer.idle.pop(connection, None) is not None:
            peer.busy[connection] = None

    def waits(self, connection: "Connection") -> None:
        """Note that a connection waits for its next request."""
        peer = self._peers.get(connection.address)
        if peer is not None and connection in peer:
            peer.busy.pop(connection, None)
            peer.idle.pop(connection, None)
            peer.idle[connection] = connection.loop.time()

    def leave(self, connection: "Connection") -> None:
        """Remove a connection."""
        self.strangers.leave(connection.address, connection)
        peer = self._peers.get(connection.address)
        if peer is not None and connection in peer:
            peer.busy.pop(connection, None)
            peer.idle.pop(connection, None)
            self._count_out(peer)

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
        patience = CLOSING_SECONDS if self._is_closing else self.limits.idle_seconds
        for connection in self:
            since = self._peers[connection.address].idle.get(connection)  # None while a request is answered
            if connection.reads_too_slowly(now):
                connection.give_up()
            elif since is not None and not connection.is_done:
                self.waits(connection)  # its last answer is still on its way
            elif since is not None and now - since > patience:
                connection.give_up()

    def _close_one(self, newest: "Connection | socket.socket") -> None:
        most = max(map(len, self._peers.values()))
        peers = [peer for peer in self._peers.values() if len(peer) == most]
        peer = min(peers, key=lambda peer: next(iter(peer.idle.values()), math.inf))
        chosen = peer.least_needed(newest, asyncio.get_running_loop().time())
        if isinstance(chosen, socket.socket):
            self._give_up_handshake(peer, chosen)
        else:
            chosen.give_up()

    def _give_up_handshake(self, peer: "_Peer", accepted: socket.socket) -> None:
        give_up = peer.shaking[accepted]
        self.shook(peer.address, accepted)
        give_up()

    def _peer(self, address: str) -> "_Peer":
        return self._peers.setdefault(address, _Peer(address))

    def _count_out(self, peer: "_Peer") -> None:
        self._size -= 1
        if not len(peer):
            self._peers.pop(peer.address, None)


class _Peer:
    """The connections of one address, the oldest first."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.shaking: OrderedDict[socket.socket, Callable[[], Any]] = OrderedDict()  # -> how to give up
        self.idle: OrderedDict[Connection, float] = OrderedDict()  # -> since when
        self.busy: OrderedDict[Connection, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.shaking) + len(self.idle) + len(self.busy)

    def __contains__(self, connection: "Connection") -> bool:
        return connection in self.idle or connection in self.busy

    def least_needed(self, newest: "Connection | socket.socket", now: float) -> "Connection | socket.socket":
        """Return the connection that is closed if there are too many."""
        idle = next(iter(self.idle), None)
        if idle is not None and idle is not newest and now - self.idle[idle] >= GRACE_SECONDS:
            return idle
        for other in self.busy:
            if not other.is_known:
                return other
        shaking = next(iter(self.shaking), None)
        others = [each for each in (idle, shaking) if each is not None and each is not newest]
        if others:
            return others[0]
        is_here = newest in self.shaking or newest in self.idle
        return newest if is_here else next(reversed(self.busy))


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
        self.address = ""  # of the peer, as `address_of` gives it
        self.accepted: socket.socket | None = None
        self.is_known = False  # its current request is a client's or the operator's, and within the client's rate
        self.certified: str | None = None  # the name in the peer's certificate, if one is asked for
        self._head = 0  # bytes since the last piece of a body or end of a request
        self._got_on = False
        self._answered: Any = None  # the request that is being answered; `cycle` is the last that has come
        self._slow_since: tuple[float, int] | None = None  # when bytes began to wait for the peer, and what it had read

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being answered."""
        return self._answered is not None and not self._answered.response_complete

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to answer or send."""
        return not self.is_busy and self.transport.get_write_buffer_size() == 0

    def give_up(self) -> None:
        """Close at once."""
        self.limit.leave(self)  # now, because the event loop reports it later
        self.transport.abort()

    @property
    def held(self) -> int:
        """Return the bytes that wait to be answered or sent."""
        cycles = [*(cycle for cycle, _ in self.pipeline), *([self._answered] if self._answered else [])]
        return sum(len(cycle.body) for cycle in cycles) + int(self.transport.get_write_buffer_size())

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
        with suppress(AttributeError):  # asyncio reads up to 256 kB at once
            transport.max_size = PIECE  # type: ignore[attr-defined]
        self.certified = _common_name(transport)
        self.limit.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister."""
        super().connection_lost(exc)  # tells the last request only
        if self.is_busy:
            self._answered.disconnected = True
            self._answered.message_event.set()
        self.pipeline.clear()
        self.limit.leave(self)

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
        elif is_last:
            self.limit.waits(self)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start to answer a request, at once if the one before was a client's; others take turns."""
        self._answered, was_known, self.is_known = cycle, self.is_known, False
        self.limit.works(self)
        if was_known:
            super()._start_asgi_task(cycle, app)
        else:
            start = partial(super()._start_asgi_task, cycle, app)
            self.limit.strangers.ask(self.address, self, start, self.loop)


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
