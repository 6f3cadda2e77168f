"""Limits on how many a second: requests of a client, starts of all peers, lines of the log."""

import asyncio
import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from itertools import islice

from cdfl.wire import TooManyError


class TokenBucket:
    """A token bucket: allows `rate` events a second on average, and `burst` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._left, self._then = burst, -math.inf

    def take(self, now: float) -> float:
        """Take one and return 0, or return the seconds until there is one."""
        self._left = min(self.burst, self._left + (now - self._then) * self.rate)
        self._then = now
        if self._left < 1:
            return max(1e-3, (1 - self._left) / self.rate)
        self._left -= 1
        return 0.0

    def is_full(self, now: float) -> bool:
        """Return whether nothing was taken for so long that the bucket carries no information."""
        return now - self._then > self.burst / self.rate


class RateLimit:
    """A token bucket for each client."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}  # the most recent is last
        self._turn = threading.Lock()

    def check(self, client_id: str) -> None:
        """Count a request, or raise TooManyError with the time to wait."""
        with self._turn:
            now = self._clock()
            bucket = self._buckets[client_id] = self._buckets.pop(client_id, TokenBucket(self.rate, self.burst))
            wait = bucket.take(now)
            for other, old in list(islice(self._buckets.items(), 2)):  # evict idle ones, two at a time
                if old.is_full(now):
                    del self._buckets[other]
        if wait:
            raise TooManyError(f"more than {self.rate:g} requests a second; wait {math.ceil(wait)} s", retry_after=wait)


class Turns:
    """Starts what peers ask for, so many a second. Addresses take turns, so one with many connections delays itself."""

    def __init__(self, rate: float) -> None:
        self._bucket = TokenBucket(rate, burst=max(1.0, rate / 10))
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
            wait = self._bucket.take(loop.time())
            if wait > 0:
                self._timer = loop.call_later(wait, self._start, loop)
                return
            address, mine = self._waiting.popitem(last=False)
            _, start = mine.popitem(last=False)
            if mine:
                self._waiting[address] = mine  # behind the other addresses
            start()


class LogLimit(logging.Filter):
    """Lets so many records a second of each line of code pass, and says how many it left out.

    Every line has a budget of its own, so that a flood of one message hides no other.
    """

    def __init__(self, rate: float, burst: float = 50.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._buckets: dict[tuple[str, int], TokenBucket] = {}
        self._left_out: Counter[tuple[str, int]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        kind = record.pathname, record.lineno
        bucket = self._buckets.setdefault(kind, TokenBucket(self.rate, self.burst))
        if bucket.take(self._clock()) > 0:
            self._left_out[kind] += 1
            return False
        if left_out := self._left_out.pop(kind, 0):
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines were left out before this one)", ()
        return True
