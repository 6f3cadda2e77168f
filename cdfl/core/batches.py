"""Which samples form which batch."""

from math import ceil

import torch
from torch import Tensor


def batch_plan(num_samples: int, batch_size: int, passes: int, generator: torch.Generator) -> Tensor:
    """Indices of the samples of every batch of a training, (steps, batch).

    The samples are shuffled anew for every pass and the passes laid end to end, so every batch is full and clients
    with different amounts of data can be trained side by side. The last batch runs into one pass more where needed.
    Fewer samples than `batch_size` make batches of all samples.

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
