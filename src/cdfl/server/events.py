"""The stream of events: one event an upload, from any epoch that the journal still has."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fastapi.sse import ServerSentEvent

from cdfl.server.engine import RETRY_SECONDS
from cdfl.server.errors import StoreUnavailable
from cdfl.server.records import Entry
from cdfl.server.store import Store
from cdfl.wire import UnavailableError

PAGE = 100  # entries read at a time
OPENING = ServerSentEvent(comment="the epochs after this line are events")


class Notifier:
    """Wakes all streams after a commit."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self.is_over = False

    def notify(self) -> None:
        """Wake all streams; may be called from any thread."""
        if self._loop is not None and self._waiting:
            with suppress(RuntimeError):  # the loop has just ended, and with it all streams
                self._loop.call_soon_threadsafe(self._wake)

    def end(self) -> None:
        """Let all streams end; called on the event loop."""
        self.is_over = True
        self._wake()

    @contextmanager
    def subscribed(self) -> Iterator[asyncio.Event]:
        """Lend an event that is set by the next notification."""
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()


class StreamLimit:
    """Limits the number of open streams. Used on the event loop only."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open = 0

    async def __call__(self) -> AsyncIterator[None]:
        """Count a stream while its response is sent; a dependency of the route, so it may refuse before that."""
        if self._open >= self.most:
            raise UnavailableError(f"{self.most} streams are open already; try again later", RETRY_SECONDS)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


async def stream(
    store: Store, notifier: Notifier, after: int, show: Callable[[Entry], dict[str, Any]]
) -> AsyncIterator[ServerSentEvent]:
    """Yield an event for each epoch above `after`: first those of the journal, then new ones as they come."""
    yield OPENING
    while not notifier.is_over:
        with notifier.subscribed() as news:  # before the journal is read, so that no commit is missed
            entries: list[Entry] = []
            with suppress(StoreUnavailable):  # a later read finds everything
                entries = await asyncio.to_thread(store.entries, after, PAGE)
            if not entries:
                await news.wait()
        for entry in entries:
            yield ServerSentEvent(data=show(entry), id=str(entry.epoch))
            after = entry.epoch


def event_of(entry: Entry, *, whole: bool) -> dict[str, Any]:
    """Return one entry as an event. Only the client itself and the operator see it whole."""
    public = {
        "epoch": entry.epoch,
        "outcome": entry.outcome,
        "staleness": entry.staleness,
        "cluster_losses": entry.cluster_losses,
        "received": entry.received,
    }
    return public | {"client_id": entry.client_id} | entry.decision if whole else public
