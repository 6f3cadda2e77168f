"""How far runs are, in plain lines: for logs, and wherever there is no terminal to draw on."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cdfl.record import Diverged, Event, Uploaded

SECONDS_BETWEEN_LINES = 20.0


@contextmanager
def lines(tell: Callable[[str], None], num_uploads: int) -> Iterator[Callable[[Event], None]]:
    """Take events, and tell a line now and then.

    A thread tells, so that runs that train for an hour before the first event are not silent either.
    """
    done, begun, told, over = 0, time.monotonic(), False, threading.Event()

    def count(event: Event) -> None:
        nonlocal done, told
        done, told = done + isinstance(event, Uploaded | Diverged), True

    def talk() -> None:
        while not over.wait(SECONDS_BETWEEN_LINES):
            state = f"{done:,} of {num_uploads:,} uploads" if told else "reading data and pre-training"
            tell(f"{state}, {time.monotonic() - begun:.0f} s")

    talker = threading.Thread(target=talk, daemon=True)
    talker.start()
    try:
        yield count
    finally:
        over.set()
        talker.join()  # no line comes after what is said next
