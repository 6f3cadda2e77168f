"""Limits on the bytes that all peers hold together: uploads on their way in, models on their way out."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Holder = TypeVar("Holder")


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
