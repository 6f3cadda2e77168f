"""Plan the batches of a training, and check a batch."""

from math import ceil
from typing import Any

import torch
from torch import Tensor


def batch_plan(num_samples: int, batch_size: int, passes: int, generator: torch.Generator) -> Tensor:
    """Return the indices of the samples of every batch, (steps, batch).

    The samples are reshuffled for every pass and the passes are concatenated, so every batch is full and clients with
    different amounts of data can be trained together. If needed, the last batch takes samples of one more pass. With
    fewer samples than `batch_size`, every batch holds all samples.

    >>> plan = batch_plan(num_samples=5, batch_size=4, passes=2, generator=torch.Generator().manual_seed(0))
    >>> plan.shape, plan.flatten()[:5].sort().values
    (torch.Size([3, 4]), tensor([0, 1, 2, 3, 4]))
    """
    if num_samples < 1:
        raise ValueError("there is no data to train on; expected at least one sample")
    size = min(batch_size, num_samples)
    steps = ceil(passes * num_samples / size)
    shuffles = [torch.randperm(num_samples, generator=generator) for _ in range(ceil(steps * size / num_samples))]
    return (
        torch.cat(shuffles)[: steps * size].view(steps, size) if shuffles else torch.empty(0, size, dtype=torch.int64)
    )


def pair_of(batch: Any, name: str = "a batch") -> tuple[Any, Any]:
    """Return the inputs and targets of a batch; raise ValueError if it is not a pair.

    >>> pair_of((torch.zeros(3, 2), torch.zeros(3), "car-7"))
    Traceback (most recent call last):
    ValueError: a batch is a tuple of 3; expected a pair (inputs, targets)
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError(f"{name} is {described(batch)}; expected a pair (inputs, targets)")
    return batch[0], batch[1]


def described(value: Any) -> str:
    """Describe a value in a few words.

    >>> described(torch.zeros(3, 2)), described([1, 2, 3]), described(None)
    ('a tensor of shape [3, 2] (float32)', 'a list of 3', 'of type NoneType')
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} ({str(value.dtype).removeprefix('torch.')})"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"
