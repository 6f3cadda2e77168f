"""Accept connections, so that a socket counts from the moment it is accepted.

asyncio's own server would report a TLS connection only after its handshake.
"""

import asyncio
import errno
import logging
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any

from cdfl.server.connection_limit import PIECE, Connection, ConnectionLimit
from cdfl.server.rate_limits import TokenBucket

logger = logging.getLogger("cdfl.server")

NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NETWORK_BYTES = 8  # of an IPv6 address: one peer usually has all addresses behind them
PAUSE = 0.1  # seconds until the next attempt to accept if there are no files left


class Acceptor:
    """Accepts connections for uvicorn, in place of asyncio's server."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], Connection],
        limit: ConnectionLimit,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.sockets = [listening]
        self._make, self._limit, self._tls = make, limit, tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = TokenBucket(1 / 60, burst=1.0)
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
                accepted, address = await self._loop.sock_accept(self.sockets[0])
            except OSError as error:
                if error.errno in NO_FILES and self._log.take(self._loop.time()) == 0:
                    logger.warning("no connection can be accepted: %s; raise ulimit -n", error.strerror)
                await asyncio.sleep(PAUSE if error.errno in NO_FILES else 0)  # otherwise the peer is gone already
                continue
            peer = address_of(address)
            task = self._loop.create_task(self._connect(accepted, peer))
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, accepted, peer))
            self._limit.accepted(peer, accepted, task.cancel)

    async def _connect(self, accepted: socket.socket, peer: str) -> None:
        """Shake hands, and hand the socket to its protocol."""
        options: dict[str, Any] = {}
        if self._tls is not None:
            turn = self._loop.create_future()
            self._limit.handshakes.ask(peer, accepted, partial(turn.set_result, None), self._loop)
            await turn
            options = {"ssl": self._tls(), "ssl_handshake_timeout": self._limit.limits.handshake_seconds}
        connection = self._make()
        connection.address, connection.accepted = peer, accepted
        await self._loop.connect_accepted_socket(lambda: connection, accepted, **options)

    def _end(self, accepted: socket.socket, peer: str, task: asyncio.Task[None]) -> None:
        """Close the socket if there is no connection. That is the peer's fault, unless it is ours."""
        self._tasks.discard(task)
        self._limit.shook(peer, accepted)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            accepted.close()
        if error is not None and not isinstance(error, OSError):  # ssl.SSLError and TimeoutError are OSErrors
            logger.error("a connection could not be set up", exc_info=error)


def address_of(address: object) -> str:
    """Return what counts as one peer: an IPv4 address, or the network of an IPv6 address.

    >>> address_of(("192.0.2.7", 40000)), address_of(("::ffff:192.0.2.7", 1, 0, 0))
    ('192.0.2.7', '192.0.2.7')
    >>> address_of(("2001:db8::1", 1, 0, 0)) == address_of(("2001:db8::ffff", 2, 0, 0))
    True
    """
    host = str(address[0]) if isinstance(address, tuple) and address else ""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or found.packed[:NETWORK_BYTES].hex())
