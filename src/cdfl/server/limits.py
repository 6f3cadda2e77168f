"""The limits of a server: sizes, rates and times."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import islice

from cdfl.wire import TooManyError

MEGABYTE = 10**6


@dataclass(frozen=True)
class Limits:
    """Every limit of a server. Sizes are in bytes, times in seconds."""

    body_bytes: int | None = (
        None  # largest upload, before and after decompression; None for what the model needs, plus slack
    )
    queue: int = 512  # at most this many uploads wait to be evaluated and applied
    queue_seconds: float = 30.0  # uploads are refused if they would wait longer
    queue_bytes: int = 2048 * MEGABYTE  # total size of the models in the queue
    requests_per_second: float = 20.0  # average rate of one client
    burst: int = 40  # one client may send this many requests at once
    clients: int = 100_000  # newcomers are refused once this many clients are known
    connections: int = 4096  # if more are open, the one that has been idle longest is closed
    handshakes: int = 256  # at once; beyond them, the oldest of the address that has most is given up
    handshakes_per_second: float = 100.0  # of TLS, of all peers; each costs the processor a millisecond or more
    handshake_seconds: float = 10.0
    strangers_per_second: float = 500.0  # requests of all connections on which no client has authenticated
    arriving_bytes: int = 8192 * MEGABYTE  # uploads on their way to the disk; beyond it, the slowest is given up
    reply_bytes: int = 512 * MEGABYTE  # models that are being sent; beyond it, the one read least lately is given up
    streams: int = 64  # event streams of clients
    client_streams: int = 4  # of one client
    operator_streams: int = 8  # of the operator, beside those
    log_lines_per_second: float = 5.0
    idle_seconds: float = 30.0  # a connection without a complete request header is closed after this time
    stall_seconds: float = 30.0  # a body may pause this long, in either direction
    least_rate: float = 2_000.0  # least average rate of a body in bytes a second, after `stall_seconds`

    def __post_init__(self) -> None:
        """Refuse limits that nothing could pass."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ValueError(f"the limit {field.name} is {value!r}; expected a number above 0")

    def queue_of(self, model_bytes: int) -> int:
        """Return how many uploads of this size may wait: at least the one that is processed and the next."""
        return max(2, min(self.queue, self.queue_bytes // max(1, model_bytes)))


class MeanTime:
    """Running mean of the seconds that an upload takes."""

    DECAY = 0.9

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float, num_uploads: int) -> None:
        """Add uploads that took so many seconds together."""
        kept = self.DECAY**num_uploads if self.seconds else 0.0
        self.seconds = kept * self.seconds + (1 - kept) * seconds / num_uploads


class Pace:
    """A token bucket."""

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
        self._buckets: dict[str, Pace] = {}  # the most recent is last
        self._turn = threading.Lock()

    def check(self, client_id: str) -> None:
        """Count a request, or raise TooManyError with the time to wait."""
        with self._turn:
            now = self._clock()
            bucket = self._buckets[client_id] = self._buckets.pop(client_id, Pace(self.rate, self.burst))
            wait = bucket.take(now)
            for other, old in list(islice(self._buckets.items(), 2)):  # evict idle ones, two at a time
                if old.is_full(now):
                    del self._buckets[other]
        if wait:
            raise TooManyError(f"more than {self.rate:g} requests a second; wait {math.ceil(wait)} s", retry_after=wait)


class LogLimit(logging.Filter):
    """Lets so many records a second of each line of code pass, and says how many it left out.

    Every line has a budget of its own, so that a flood of one message hides no other.
    """

    def __init__(self, rate: float, burst: float = 50.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._paces: dict[tuple[str, int], Pace] = {}
        self._left_out: Counter[tuple[str, int]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        kind = record.pathname, record.lineno
        pace = self._paces.setdefault(kind, Pace(self.rate, self.burst))
        if pace.take(self._clock()) > 0:
            self._left_out[kind] += 1
            return False
        if left_out := self._left_out.pop(kind, 0):
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines were left out before this one)", ()
        return True
