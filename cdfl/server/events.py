"""What happened, as a stream: one event an upload, from any epoch the journal still has."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from cdfl.server.journal import Entry, StoreUnavailable
from cdfl.server.store import Store

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
