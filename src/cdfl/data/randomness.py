"""Where every random choice about data comes from: a generator named by what it decides."""

import zlib

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Make a fresh generator for one decision, e.g. `generator(seed, "draw", client, update)`.

    Nothing else moves it, so a client's data do not depend on who was asked before.

    >>> first, again = (generator(0, "draw", 3, 1).integers(100) for _ in range(2))
    >>> bool(first == again)
    True
    """
    for number in (seed, *key):
        if number < 0:
            raise ValueError(f"seed, client and update must be 0 or larger, got {(seed, *key)}")
    # crc32 and not hash(): Python's string hash changes from one process to the next.
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *key])
