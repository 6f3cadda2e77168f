"""Write the progress of runs as plain lines, for logs and where there is no terminal."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cdfl.record import Diverged, Event, Uploaded

SECONDS_BETWEEN_LINES = 20.0

# Called with the steps of pre-training so far and in all; set it around a run to be told.
pretraining: ContextVar[Callable[[int, int], Any]] = ContextVar("pretraining", default=lambda done, total: None)


@contextmanager
def lines(write: Callable[[str], None], num_uploads: int) -> Iterator[Callable[[Event], None]]:
    """Yield a function that counts events, and write a line every 20 seconds.

    A thread writes the lines, so a run also reports before its first event.
    """
    begun, over = time.monotonic(), threading.Event()
    before, uploads, is_started = Remaining(), Remaining(num_uploads), False

    def count(event: Event) -> None:
        nonlocal is_started
        if isinstance(event, Uploaded | Diverged):
            uploads.step(uploads.done + 1, num_uploads)
        is_started = True

    def state() -> str:
        if is_started:
            return f"{uploads.done:,} of {num_uploads:,} uploads{uploads.left}"
        return f"pre-training, {before.done / before.total:.0%}{before.left}" if before.done else "reading data"

    def report() -> None:
        while not over.wait(SECONDS_BETWEEN_LINES):
            write(f"{state()}, {time.monotonic() - begun:.0f} s so far")

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    told = pretraining.set(before.step)
    try:
        yield count
    finally:
        pretraining.reset(told)
        over.set()
        reporter.join()  # the caller's next line comes after all of these


class Remaining:
    """How much of some work is done, and how long the rest takes."""

    def __init__(self, total: int = 0) -> None:
        self.done, self.total, self._begun = 0, total, time.monotonic()

    def step(self, done: int, total: int) -> None:
        """Note how much is done."""
        if self.done == 0:
            self._begun = time.monotonic()
        self.done, self.total = done, total

    @property
    def left(self) -> str:
        """Return about how long the rest takes, in words; nothing at the beginning."""
        if self.done < 2:
            return ""
        seconds = (time.monotonic() - self._begun) * (self.total - self.done) / (self.done - 1)
        return f", about {seconds:.0f} s left" if seconds < 100 else f", about {seconds / 60:.0f} min left"
