"""Choose torch's device and number of threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def find_device(name: str) -> str:
    """Return the device of this name; raise `ValueError` if this machine does not have it.

    >>> find_device("cpu")
    'cpu'
    >>> find_device("tpu")
    Traceback (most recent call last):
    ValueError: device is 'tpu'; expected auto, cpu, cuda or cuda:N
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not number.isdecimal()):
        raise ValueError(f"device is {name!r}; expected auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {name!r}, but this machine has no such GPU that torch can use; use 'cpu'")
    return name


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads for a while. With 1, every operation runs on the calling thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
