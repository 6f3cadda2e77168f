"""Memory that is used again rather than given back: by the steps of a training, by the uploads of a server."""

import ctypes
import sys

MB = 2**20

# Options of glibc's mallopt: their numbers in malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8


def keep_freed_memory(megabytes: int = 256, *, one_pool: bool = False) -> bool:
    """Let this process keep memory that it frees, up to so much in each of its pools; says whether it will.

    Otherwise large pieces go back to the system and come again as thousands of pages to be zeroed, which takes a good
    part of the time of a training, and several times that of the arithmetic on an upload. Usually every thread has a
    pool, so none waits for another; with `one_pool`, which is to be asked for before threads start, all share one, so
    memory does not grow with their number. This holds for the whole process, from now on, and only for glibc, the C
    library of most Linux systems; elsewhere nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    options = {
        MMAP_THRESHOLD: 32 * MB,  # its limit: what is smaller comes from a pool
        TRIM_THRESHOLD: megabytes * MB,  # so much may lie unused at the end of one
        TOP_PAD: 64 * MB,  # by so much it grows, and a thread keeps a part of this size that is empty
    } | ({ARENA_MAX: 1} if one_pool else {})
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in options.items())
