"""Memory that one step of a training leaves to the next."""

import ctypes
import sys

MB = 2**20

# Options of glibc's mallopt: their numbers in malloc.h, and what they become.
OPTIONS = {
    -3: 32 * MB,  # M_MMAP_THRESHOLD, at its limit: what is smaller comes from memory that is kept
    -1: 256 * MB,  # M_TRIM_THRESHOLD: so much may lie unused at the end of it
    -2: 64 * MB,  # M_TOP_PAD: by so much it grows, and a thread keeps a part of this size that is empty
}


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, up to 256 MB a thread; says whether it will.

    Otherwise the activations of every step go back to the system and come again as thousands of pages to be zeroed,
    which takes a good part of the time of a training. This holds for the whole process, from now on, and only for
    glibc, the C library of most Linux systems; elsewhere nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in OPTIONS.items())
