"""Tune glibc's memory allocator for training and for servers."""

import ctypes
import sys

MB = 2**20

# Options of glibc's mallopt, as in malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8


def keep_freed_memory(megabytes: int = 256, *, one_pool: bool = False) -> bool:
    """Keep freed memory for reuse, up to this much in each pool; return whether the options were set.

    By default glibc returns large blocks to the system. Getting them back costs thousands of page faults: a large part
    of a training's time, and several times the arithmetic of an upload.

    Each thread has a pool. With `one_pool` all threads share one, so memory does not grow with their number; set it
    before threads start. The options hold for the whole process. Without glibc nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    options = {
        MMAP_THRESHOLD: 32 * MB,  # smaller blocks come from a pool; glibc allows no larger value
        TRIM_THRESHOLD: megabytes * MB,  # free memory that a pool keeps
        TOP_PAD: 64 * MB,  # by which a pool grows
    } | ({ARENA_MAX: 1} if one_pool else {})
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in options.items())
