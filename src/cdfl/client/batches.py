"""A client's data as batches: from a loader, a dataset, a list of batches or one batch."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from cdfl.client.errors import DivergedError
from cdfl.core import Loss
from cdfl.core.batches import described, pair_of

Batch = tuple[Any, Any]  # inputs, targets
Data = Iterable[Any]  # a DataLoader or other iterable of batches, a map-style Dataset, or one batch


def batches_of(data: Data, batch_size: int) -> Iterable[Batch]:
    """Return the data as batches that can be iterated several times.

    >>> one = (torch.zeros(3, 2), torch.zeros(3))
    >>> [len(targets) for _, targets in batches_of(one, batch_size=8)]
    [3]
    """
    if is_batch(data):
        return [data]  # type: ignore[list-item]
    if isinstance(data, Dataset):
        return DataLoader(data, batch_size, shuffle=True)
    return list(data) if isinstance(data, Iterator) else data  # an iterator can be used only once


def is_batch(data: Any) -> bool:
    """Return whether this is one (inputs, targets) pair rather than several."""
    return isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple | list)


def nonempty(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches that have samples. The mean loss of an empty batch would be NaN."""
    return (pair for pair in map(pair_of, batches) if not _is_empty(pair[0]))


def passes(batches: Iterable[Batch], count: int, device: torch.device, loss: Loss) -> Iterator[Batch]:
    """Yield all batches `count` times, on a device."""
    for _ in range(count):
        empty = True
        for inputs, targets in nonempty(batches):
            empty = False
            check_targets(loss, targets)
            yield to_device(inputs, device), to_device(targets, device)
        if empty:
            raise ValueError(
                "there is no data to train on; expected at least one batch of (inputs, targets) with samples in it"
            )


def to_device(value: Any, device: torch.device) -> Any:
    """Return a nested value with its tensors on a device.

    >>> to_device({"image": torch.zeros(2), "names": ["a", "b"]}, torch.device("cpu"))
    {'image': tensor([0., 0.]), 'names': ['a', 'b']}
    """
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if hasattr(value, "to"):  # a tensor, or a library's container of tensors
        return value.to(device)
    if isinstance(value, dict):
        return {name: to_device(part, device) for name, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [to_device(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def check_targets(loss: Loss, targets: Any) -> None:
    """Refuse numbers as targets of cross_entropy: for one output, that would be 0 whatever the model computes."""
    takes_classes = loss is cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    are_numbers = isinstance(targets, Tensor) and targets.is_floating_point() and targets.shape[1:].numel() < 2
    if takes_classes and are_numbers:  # more numbers a sample are probabilities of classes
        raise ValueError(
            f"targets are {described(targets)}; cross_entropy, the default loss, takes classes: pass another loss for "
            "numbers, such as Client(loss=torch.nn.functional.mse_loss)"
        )


def count_samples(batches: Iterable[Batch]) -> int:
    """Return the number of targets in all batches; a batch without targets counts as one sample."""
    return sum(_count(targets) for _, targets in map(pair_of, batches))


def mean_loss(model: nn.Module, batches: Iterable[Batch], loss: Loss, device: torch.device) -> float:
    """Return the model's mean loss on non-empty batches, each weighted by its samples. The model is not trained."""
    was_training = model.training
    model.eval()
    total, samples = 0.0, 0
    with torch.no_grad():
        for inputs, targets in map(pair_of, batches):
            inputs, targets = to_device(inputs, device), to_device(targets, device)
            total += float(loss(model(inputs), targets)) * _count(targets)
            samples += _count(targets)
    model.train(was_training)
    mean = total / samples
    if not math.isfinite(mean):
        raise DivergedError(
            f"the loss on fresh data is {mean}; expected a finite number: check the data, or join again"
        )
    return mean


def _is_empty(inputs: Any) -> bool:
    """Return whether no part of the inputs has samples. Targets are not tested: a loss may need none."""
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
