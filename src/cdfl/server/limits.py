"""The limits of a server: sizes, rates and times."""

import math
import threading
import time
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
    streams: int = 64  # at most this many event streams are open
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


class RateLimit:
    """A token bucket for each client."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # client_id -> tokens left, and when
        self._turn = threading.Lock()

    def check(self, client_id: str) -> None:
        """Count a request, or raise TooManyError with the time to wait."""
        with self._turn:
            now = self._clock()
            left, then = self._buckets.pop(client_id, (float(self.burst), now))
            left = min(self.burst, left + (now - then) * self.rate)
            allowed = left >= 1
            self._buckets[client_id] = (left - allowed, now)  # the most recent is last
            self._evict_full(now)
        if not allowed:
            wait = (1 - left) / self.rate
            raise TooManyError(f"more than {self.rate:g} requests a second; wait {math.ceil(wait)} s", retry_after=wait)

    def _evict_full(self, now: float) -> None:
        """Evict idle buckets: a full one carries no information. The oldest are first; two go at a time."""
        for client_id, (_, then) in list(islice(self._buckets.items(), 2)):
            if now - then > self.burst / self.rate:
                del self._buckets[client_id]
