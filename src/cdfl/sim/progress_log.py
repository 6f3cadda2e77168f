"""Write the progress of runs as plain lines, for logs and where there is no terminal."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cdfl.record import Diverged, Event, Uploaded

SECONDS_BETWEEN_LINES = 20.0


@contextmanager
def lines(write: Callable[[str], None], num_uploads: int) -> Iterator[Callable[[Event], None]]:
    """Yield a function that counts events, and write a line every 20 seconds.

    A thread writes the lines, so a run also reports before its first event.
    """
    done, begun, started, over = 0, time.monotonic(), False, threading.Event()

    def count(event: Event) -> None:
        nonlocal done, started
        done, started = done + isinstance(event, Uploaded | Diverged), True

    def report() -> None:
        while not over.wait(SECONDS_BETWEEN_LINES):
            state = f"{done:,} of {num_uploads:,} uploads" if started else "reading data and pre-training"
            write(f"{state}, {time.monotonic() - begun:.0f} s")

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield count
    finally:
        over.set()
        reporter.join()  # the caller's next line comes after all of these
