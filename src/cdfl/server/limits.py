"""How much a server takes from strangers, and how long it waits for them."""

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

    body_bytes: int | None = None  # of an upload, before and after decompression; None: what the model needs, and room
    queue: int = 512  # uploads that wait to be evaluated and applied
    queue_seconds: float = 30.0  # that an upload is expected to wait there; clients would give up before long
    queue_bytes: int = 2048 * MEGABYTE  # of the models in that queue; large models make it shorter
    requests_per_second: float = 20.0  # of one client, on average
    burst: int = 40  # requests of one client that may come at once
    clients: int = 100_000  # that the server gets to know; newcomers beyond them are refused
    connections: int = 4096  # beyond them the one that has been idle longest is closed
    streams: int = 64  # of events, open at a time
    idle_seconds: float = 30.0  # that a connection may stay open without a whole header of a request
    stall_seconds: float = 30.0  # without one byte of a body, in either direction
    least_rate: float = 2_000.0  # bytes a second that a body must come with, on average, after `stall_seconds`

    def __post_init__(self) -> None:
        """Refuse what would refuse everything."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ValueError(f"the limit {field.name} is {value!r}; expected a number above 0")

    def queue_of(self, model_bytes: int) -> int:
        """Uploads that may wait, where each is so large: at least one that is worked on and one that is next."""
        return max(2, min(self.queue, self.queue_bytes // max(1, model_bytes)))


class Pace:
    """How long an upload takes, of late: a mean in which the past fades."""

    FADING = 0.9

    def __init__(self) -> None:
        self.seconds = 0.0

    def saw(self, seconds: float, uploads: int) -> None:
        """So many uploads have taken so long together."""
        kept = self.FADING**uploads if self.seconds else 0.0
        self.seconds = kept * self.seconds + (1 - kept) * seconds / uploads


class RateLimit:
    """A bucket a client: every request takes one drop, and drops fall at a steady rate."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # client_id -> drops, as of when
        self._turn = threading.Lock()

    def check(self, client_id: str) -> None:
        """Count a request, or refuse it and say how long to wait."""
        with self._turn:
            now = self._clock()
            drops, then = self._buckets.pop(client_id, (float(self.burst), now))
            drops = min(self.burst, drops + (now - then) * self.rate)
            allowed = drops >= 1
            self._buckets[client_id] = (drops - allowed, now)  # the most recent one is last
            self._forget_the_full(now)
        if not allowed:
            wait = (1 - drops) / self.rate
            raise TooManyError(f"more than {self.rate:g} requests a second; wait {math.ceil(wait)} s", retry_after=wait)

    def _forget_the_full(self, now: float) -> None:
        """Buckets that were left alone until they must be full say nothing; the oldest are first, two go at a time."""
        for client_id, (_, then) in list(islice(self._buckets.items(), 2)):
            if now - then > self.burst / self.rate:
                del self._buckets[client_id]
