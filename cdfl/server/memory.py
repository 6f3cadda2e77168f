"""How the C library holds memory while models of megabytes come and go."""

import ctypes
import sys
from contextlib import suppress

# Numbers of glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8
MEGABYTE = 2**20


def keep_freed_memory() -> None:
    """Let all threads share one pool, and keep what is freed for the next upload; to be called before threads start.

    By default every thread has a pool of its own, so memory grows with threads; and large blocks go back to the system
    at once, so that each new one is paid for with page faults, which cost several times its arithmetic.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(ARENA_MAX, 1)
        mallopt(MMAP_THRESHOLD, 32 * MEGABYTE)  # the most it takes
        mallopt(TRIM_THRESHOLD, 512 * MEGABYTE)
        mallopt(TOP_PAD, 64 * MEGABYTE)
