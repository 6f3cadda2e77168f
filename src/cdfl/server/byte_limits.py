"""What all peers share: starts a second, and bytes of models that are sent or received."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from ipaddress import IPv6Address, ip_address
from typing import Generic, Protocol, TypeVar

from cdfl.server.limits import Pace

Holder = TypeVar("Holder")

NETWORK_BYTES = 8  # of an IPv6 address: one peer usually has all addresses behind them


class Turns:
    """Starts what peers ask for, so many a second. Addresses take turns, so one with many connections delays itself."""

    def __init__(self, rate: float) -> None:
        self._pace = Pace(rate, burst=max(1.0, rate / 10))
        self._waiting: OrderedDict[str, OrderedDict[Hashable, Callable[[], None]]] = OrderedDict()  # by address
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def ask(self, address: str, asker: Hashable, start: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Call `start` now, or when the turn of this address and this asker comes."""
        self._waiting.setdefault(address, OrderedDict())[asker] = start
        if self._timer is None:
            self._start(loop)

    def leave(self, address: str, asker: Hashable) -> None:
        """Start nothing for an asker that has gone."""
        if (mine := self._waiting.get(address)) is not None:
            mine.pop(asker, None)
            if not mine:
                del self._waiting[address]

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._waiting:
            wait = self._pace.take(loop.time())
            if wait > 0:
                self._timer = loop.call_later(wait, self._start, loop)
                return
            address, mine = self._waiting.popitem(last=False)
            _, start = mine.popitem(last=False)
            if mine:
                self._waiting[address] = mine  # behind the other addresses
            start()


class ByteLimit(Generic[Holder]):
    """So many bytes together. Beyond them, the holder that made no progress for the longest time gives up its own."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._held: OrderedDict[Holder, tuple[int, Callable[[], None]]] = OrderedDict()  # latest progress is last

    def add(self, holder: Holder, size: int, give_up: Callable[[], None]) -> None:
        """Count bytes of a holder; `give_up` is called if others need them. The last one is always left alone."""
        before, _ = self._held.pop(holder, (0, give_up))
        self._held[holder] = before + size, give_up
        self.bytes += size
        while self.bytes > self.most_bytes and len(self._held) > 1:
            oldest = next(iter(self._held))
            _, give_up = self._held[oldest]
            self.end(oldest)
            give_up()

    def progress(self, holder: Holder) -> bool:
        """Note progress; return whether the holder was not told to give up."""
        if holder in self._held:
            self._held.move_to_end(holder)
        return holder in self._held

    def end(self, holder: Holder) -> None:
        """Count a holder no more."""
        size, _ = self._held.pop(holder, (0, None))
        self.bytes -= size


class ReplyLimit:
    """The models that are being sent: at most one to a client, and so many bytes together."""

    def __init__(self, most_bytes: int) -> None:
        self._sent: ByteLimit[Sender] = ByteLimit(most_bytes)
        self._senders: dict[str, Sender] = {}  # client -> connection

    @property
    def bytes(self) -> int:
        """Return the bytes of all of them."""
        return self._sent.bytes

    def begin(self, sender: "Sender", client_id: str, size: int) -> None:
        """Count a reply before it is sent; it takes the place of another one to the same client."""
        other = self._senders.get(client_id)
        if other is not None and other is not sender:
            self._sent.end(other)
            other.give_up()
        self._senders[client_id] = sender
        self._sent.add(sender, size, sender.give_up)

    def progress(self, sender: "Sender") -> bool:
        """Note that the peer has read; return whether the reply has not been given up."""
        return self._sent.progress(sender)

    def end(self, sender: "Sender", client_id: str) -> None:
        """Count a reply no more."""
        self._sent.end(sender)
        if self._senders.get(client_id) is sender:
            del self._senders[client_id]


class Sender(Protocol):
    """A connection on which a reply is sent."""

    def give_up(self) -> None:
        """Close the connection at once."""
        ...


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
