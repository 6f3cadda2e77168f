"""What happened, as a stream: one event an upload, from any epoch the journal still has."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from cdfl.server.journal import Entry, StoreUnavailable
from cdfl.server.session import RETRY_SECONDS
from cdfl.server.store import Store
from cdfl.wire import UnavailableError

PIECE = 100  # entries read at a time
BEAT_SECONDS = 15.0  # a comment is sent where nothing happens, so that both ends notice a dead connection


class Bell:
    """Rung by the thread that commits, heard by all streams."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self.is_over = False

    def ring(self) -> None:
        """Something has happened; from any thread."""
        if self._loop is not None and self._waiting:
            with suppress(RuntimeError):  # the loop has just ended, and with it all streams
                self._loop.call_soon_threadsafe(self._wake)

    def end(self) -> None:
        """Let all streams end; on the event loop."""
        self.is_over = True
        self._wake()

    async def wait(self) -> None:
        """Wait for the next ring, or for the next beat."""
        self._loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        self._waiting.add(heard)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await heard.wait()
        finally:
            self._waiting.discard(heard)

    def _wake(self) -> None:
        for heard in self._waiting:
            heard.set()


class Streams:
    """How many streams are open; no more than `most`. Used on the event loop only."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open = 0

    def __enter__(self) -> None:
        """Open one, or refuse: nothing happens between the look and the count."""
        if self._open >= self.most:
            raise UnavailableError(f"{self.most} streams are open, no more are; come back later", RETRY_SECONDS)
        self._open += 1

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._open -= 1


class EventStream(StreamingResponse):
    """A stream as a response. Refused where too many are open: before its first byte, so as an error like any other.

    It counts as open while it is being sent and no longer, even if the client is gone before the first line is asked
    for; the generator of the lines would not notice that.
    """

    media_type = "text/event-stream"

    def __init__(self, lines: AsyncIterator[str], streams: Streams) -> None:
        super().__init__(lines, headers={"Cache-Control": "no-store"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._streams:
            await super().__call__(scope, receive, send)


async def stream(store: Store, bell: Bell, after: int, see: Callable[[Entry], dict[str, Any]]) -> AsyncIterator[str]:
    """Server-sent events with epochs above `after`, old ones first, then as they come."""
    yield ": the epochs after this line are events\n\n"
    while not bell.is_over:
        heard = asyncio.create_task(bell.wait())  # before the look, so that nothing falls between the two
        await asyncio.sleep(0)
        entries: list[Entry] = []
        with suppress(StoreUnavailable):  # it will be back, and a later look finds everything
            entries = await asyncio.to_thread(store.entries, after, PIECE)
        for entry in entries:
            yield f"id: {entry.epoch}\ndata: {json.dumps(see(entry))}\n\n"
            after = entry.epoch
        if entries:
            heard.cancel()
            continue
        await heard
        yield ":\n\n"


def event_of(entry: Entry, *, whole: bool) -> dict[str, Any]:
    """One entry as an event. Who uploaded, and with what mixture, is told to that client and the operator only."""
    event: dict[str, Any] = {
        "epoch": entry.epoch,
        "outcome": entry.outcome,
        "staleness": entry.staleness,
        "cluster_losses": list(entry.cluster_losses),
        "received": entry.received,
    }
    if whole:
        event |= {
            "client_id": entry.client_id,
            "base_epoch": entry.base_epoch,
            "mixture": list(entry.mixture),
            "rates": list(entry.rates),
            "losses": None if entry.losses is None else list(entry.losses),
            "distances": None if entry.distances is None else list(entry.distances),
            "harm": entry.harm,
            "usual_harm": entry.usual_harm,
            "past_harm": entry.past_harm,
        }
    return event
