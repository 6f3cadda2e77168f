"""The stream of events: one event an upload, from any number that the journal still has.

After a commit each entry is turned into bytes once, however many streams there are. Streams are woken a few times a
second; the more there are, the less often, and the more events each gets at once.
"""

import asyncio
import json
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from cdfl.server.connection_limit import PIECE
from cdfl.server.limits import Limits
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreUnavailable
from cdfl.server.store_records import Entry
from cdfl.server.submission import RETRY_SECONDS
from cdfl.wire import UnavailableError

PAGE = 100  # entries read at a time
RECENT = 1000  # entries in memory
WAKE_SECONDS = 0.25  # streams are woken at most this often,
MOST_WAKES = 200  # and all together at most so many times a second, so many watchers do not slow uploads down;
SLOWEST_SECONDS = 2.0  # but this often
CHECK_SECONDS = 5.0  # a comment is sent and the token checked this often: a peer that is gone is noticed
REST = 4.0  # times the seconds that a page of old entries took
OPENING = b": the epochs after this line are events\n\n"
SIGN_OF_LIFE = b": nothing new\n\n"


class Told:
    """An entry as events: what everybody sees, and what its client and the operator see."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    @cached_property
    def whole(self) -> bytes:
        """The event with everything in it."""
        return _encoded(event_of(self.entry, whole=True), self.entry.number)

    @cached_property
    def public(self) -> bytes:
        """The event without its client."""
        return _encoded(event_of(self.entry, whole=False), self.entry.number)


class Notifier:
    """Keeps the newest entries, and wakes all streams after a commit. A listener of the engine."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self._recent: deque[Told] = deque(maxlen=RECENT)
        self._joins: deque[tuple[int, bytes]] = deque(maxlen=RECENT)  # (number, event)
        self.num_joins = 0
        self._woken = 0.0
        self.is_over = False

    @property
    def num_streams(self) -> int:
        """Return how many streams are open."""
        return len(self._waiting)

    @property
    def pause(self) -> float:
        """Return the seconds from one wake of all streams to the next."""
        return min(SLOWEST_SECONDS, max(WAKE_SECONDS, len(self._waiting) / MOST_WAKES))

    # -- from the engine's threads

    def committed(self, entries: Sequence[Entry]) -> None:
        """Keep new entries and wake all streams."""
        self._recent.extend(Told(entry) for entry in entries)
        self.notify()

    def joined(self, client_id: str) -> None:
        """Tell the streams that a client has joined; this is not part of the journal."""
        event = json.dumps({"client_id": client_id, "time": time.time()})
        self.num_joins += 1
        self._joins.append((self.num_joins, f"event: joined\ndata: {event}\n\n".encode()))
        self.notify()

    def forgot(self, client_id: str) -> None:
        """Drop what is in memory; the journal has it without the client's data."""
        self._recent.clear()
        self._joins.clear()

    def notify(self) -> None:
        """Wake all streams; may be called from any thread."""
        if self._loop is not None and self._waiting:
            with suppress(RuntimeError):  # the loop has just ended, and with it all streams
                self._loop.call_soon_threadsafe(self._wake_soon, self._loop)

    # -- on the event loop

    def end(self) -> None:
        """Let all streams end; called on the event loop."""
        self.is_over = True
        self._wake()

    @contextmanager
    def subscribed(self) -> Iterator[asyncio.Event]:
        """Lend an event that is set when something is new."""
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)

    def after(self, number: int) -> list[Told] | None:
        """Return the entries after a number; None if they are not all in memory."""
        recent = list(self._recent)
        if not recent or recent[0].entry.number > number + 1:
            return None
        return recent[bisect_right(recent, number, key=lambda told: told.entry.number) :]

    def joins_after(self, number: int) -> list[bytes]:
        """Return the joins after this one."""
        return [event for join, event in list(self._joins) if join > number]

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake all streams, unless that is about to happen anyway."""
        now = loop.time()
        if now >= self._woken:
            wait = max(0.0, self._woken + self.pause - now)
            self._woken = now + wait
            loop.call_later(wait, self._wake)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()


class StreamLimit:
    """Limits open streams: of all clients, of each one, and of the operator. Used on the event loop only.

    Streams that read old entries take turns, and rest after each page, so that clients who upload are not slowed down.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[str | None] = Counter()
        self._of_operator = 0
        self._turn = asyncio.Semaphore(1)

    @contextmanager
    def place(self, client_id: str | None, *, is_operator: bool) -> Iterator[None]:
        """Count a stream while it is open, or refuse it; `client_id` is None for one without a name."""
        if is_operator:
            most = self._limits.operator_streams
            _refuse_if(self._of_operator >= most, f"{most} streams of the operator are")
            self._of_operator += 1
        else:
            mine = client_id is not None and self._open[client_id] >= self._limits.client_streams
            _refuse_if(mine, f"{self._limits.client_streams} streams of this client are")
            _refuse_if(self._open.total() >= self._limits.streams, f"{self._limits.streams} streams are")
            self._open[client_id] += 1
        try:
            yield
        finally:
            if is_operator:
                self._of_operator -= 1
            else:
                self._open[client_id] -= 1
                self._open += Counter()  # drop zeros

    async def read(self, store: Store, after: int) -> list[Told]:
        """Return a page of old entries."""
        async with self._turn:
            begun = time.monotonic()
            entries = await asyncio.to_thread(store.entries, after, PAGE)
            await asyncio.sleep(REST * (time.monotonic() - begun))
        return [Told(entry) for entry in entries]


def _refuse_if(is_over: bool, whose: str) -> None:
    if is_over:
        raise UnavailableError(f"{whose} open already; try again later", RETRY_SECONDS)


async def stream(
    store: Store,
    notifier: Notifier,
    limit: StreamLimit,
    after: int,
    show: Callable[[Told], bytes],
    is_allowed: Callable[[], Awaitable[bool]],
    *,
    joins: bool,
) -> AsyncIterator[bytes]:
    """Yield events for the entries above `after`: first those of the journal, then new ones as they come.

    With `joins`, clients that join are shown, too. The stream ends when it is no longer allowed.
    """
    yield OPENING
    seen, checked = notifier.num_joins, time.monotonic()
    with notifier.subscribed() as news:
        while not notifier.is_over:
            news.clear()  # before anything is read, so that no commit is missed
            if time.monotonic() - checked > CHECK_SECONDS:
                with suppress(StoreUnavailable):
                    if not await is_allowed():
                        return
                checked = time.monotonic()
            told = notifier.after(after)
            if told is None:
                told = []
                with suppress(StoreUnavailable):  # a later read finds everything
                    told = await limit.read(store, after)
            pieces = [show(each) for each in told[:PAGE]]
            if joins:
                pieces += notifier.joins_after(seen)
                seen = notifier.num_joins
            if told:
                after = told[:PAGE][-1].entry.number
            for joined in _joined(pieces):
                yield joined
            if not told:
                try:
                    await asyncio.wait_for(news.wait(), CHECK_SECONDS)
                except TimeoutError:
                    yield SIGN_OF_LIFE


def _joined(events: list[bytes]) -> Iterator[bytes]:
    """Join events, so that a stream that nobody reads holds little more than `PIECE` bytes."""
    held = bytearray()
    for event in events:
        held += event
        if len(held) >= PIECE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def event_of(entry: Entry, *, whole: bool) -> dict[str, Any]:
    """Return one entry as an event. Only the client itself and the operator see it whole.

    What others see must not link the uploads of a client: epoch minus staleness names the reply before, and the
    clusters whose losses change are those that the client belongs to.
    """
    public = {"number": entry.number, "epoch": entry.epoch, "outcome": entry.outcome}
    if not whole:
        return public
    more = {"client_id": entry.client_id, "received": entry.received}
    return public | more | {name: value for name, value in entry.decision.items() if name != "evaluated"}


def _encoded(event: dict[str, Any], number: int) -> bytes:
    return f"data: {json.dumps(event)}\nid: {number}\n\n".encode()
