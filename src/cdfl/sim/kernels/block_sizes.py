"""When Triton kernels can run, and the sizes of their blocks."""

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton then runs on a CPU too, slowly


def runs_triton(*tensors: Tensor) -> bool:
    """Return whether Triton kernels can take these tensors: on a CUDA device, and float32 or bfloat16."""
    fits = all((t.is_cuda or INTERPRETED) and t.dtype in (torch.float32, torch.bfloat16) for t in tensors)
    return fits and _installed()


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


def aligned(size: int) -> int:
    """Return the length of a float32 row that aligns the next row to 128 bytes; matrix units read it twice as fast.

    >>> aligned(64), aligned(65)
    (64, 96)
    """
    return ceil_div(size, 32) * 32


def ceil_div(size: int, block: int) -> int:
    """Return how many blocks cover a size.

    >>> ceil_div(9, 4)
    3
    """
    return -(-size // block)


def power_of_two(size: int, least: int, most: int) -> int:
    """Return the smallest power of two of at least `size`, clamped to two bounds.

    >>> power_of_two(25, 16, 64), power_of_two(3, 16, 64), power_of_two(800, 16, 64)
    (32, 16, 64)
    """
    return max(least, min(most, 1 << (size - 1).bit_length()))
