"""Random generators, one for each decision, named by what they decide."""

import zlib

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Make a fresh generator for one decision, e.g. `generator(seed, "draw", client, update)`.

    A client's data therefore do not depend on the order of calls.

    >>> first, again = (generator(0, "draw", 3, 1).integers(100) for _ in range(2))
    >>> bool(first == again)
    True
    """
    for number in (seed, *key):
        if number < 0:
            raise ValueError(f"seed, client and update must be 0 or larger, got {(seed, *key)}")
    # crc32 and not hash(): Python's string hash changes from one process to the next.
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *key])
