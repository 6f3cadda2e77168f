"""A client's data, in the forms people have them: loaders, datasets, lists of batches, one batch."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cdfl.client.errors import DivergedError
from cdfl.core import Loss
from cdfl.core.batches import pair_of

Batch = tuple[Any, Any]  # inputs, targets
Data = Iterable[Any]  # a DataLoader or other iterable of batches, a map-style Dataset, or one batch


def batches_of(data: Data, batch_size: int) -> Iterable[Batch]:
    """Data as batches that can be gone through again and again.

    >>> one = (torch.zeros(3, 2), torch.zeros(3))
    >>> [len(targets) for _, targets in batches_of(one, batch_size=8)]
    [3]
    """
    if is_batch(data):
        return [data]  # type: ignore[list-item]
    if isinstance(data, Dataset):
        return DataLoader(data, batch_size, shuffle=True)
    return list(data) if isinstance(data, Iterator) else data  # an iterator can be gone through once


def is_batch(data: Any) -> bool:
    """Is it one (inputs, targets) pair, rather than several?"""
    return isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple | list)


def filled(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Those batches that have samples: of none the mean loss is NaN, and a training on them is none."""
    return (pair for pair in map(pair_of, batches) if not _is_empty(pair[0]))


def passes(batches: Iterable[Batch], count: int, device: torch.device) -> Iterator[Batch]:
    """All batches so many times, on a device."""
    for _ in range(count):
        empty = True
        for inputs, targets in filled(batches):
            empty = False
            yield moved(inputs, device), moved(targets, device)
        if empty:
            raise ValueError(
                "there is no data to train on; expected at least one batch of (inputs, targets) with samples in it"
            )


def moved(value: Any, device: torch.device) -> Any:
    """Tensors on a device, whatever they are nested in.

    >>> moved({"image": torch.zeros(2), "names": ["a", "b"]}, torch.device("cpu"))
    {'image': tensor([0., 0.]), 'names': ['a', 'b']}
    """
    if hasattr(value, "to"):  # a tensor, or what libraries make of several
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(part, device) for name, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def count_samples(batches: Iterable[Batch]) -> int:
    """How many samples filled batches have: as many as targets; a batch without any counts one."""
    return sum(_count(targets) for _, targets in map(pair_of, batches))


def mean_loss(model: nn.Module, batches: Sequence[Batch], loss: Loss, device: torch.device) -> float:
    """The loss of a model on filled batches, without training it: their mean, each weighted by its samples."""
    was_training = model.training
    model.eval()
    total, samples = 0.0, 0
    with torch.no_grad():
        for inputs, targets in map(pair_of, batches):
            inputs, targets = moved(inputs, device), moved(targets, device)
            total += float(loss(model(inputs), targets)) * _count(targets)
            samples += _count(targets)
    model.train(was_training)
    mean = total / samples
    if not math.isfinite(mean):
        raise DivergedError(f"the loss on fresh data is {mean}; look at the data, or join again")
    return mean


def _is_empty(inputs: Any) -> bool:
    """Has it no samples, in none of its parts? What the targets are is the loss's business."""
    if isinstance(inputs, dict | tuple | list):
        return all(map(_is_empty, inputs.values() if isinstance(inputs, dict) else inputs))
    return not isinstance(inputs, str) and _length(inputs) == 0


def _count(targets: Any) -> int:
    return _length(targets) or 1


def _length(value: Any) -> int:
    try:
        return len(value)
    except TypeError:  # one number
        return 1
