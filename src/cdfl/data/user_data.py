"""Data that users bring: pairs of tensors or arrays, and torch datasets, for each cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from cdfl.data.clusters import Clusters, Datasets
from cdfl.data.dataset import Dataset, channels_first, check_classes, check_finite
from cdfl.data.errors import DataError
from cdfl.data.randomness import generator

TEST_SHARE = 0.25  # of samples that come without a test half
FORMS = (
    "a pair (inputs, targets), a torch Dataset of such pairs, or a recipe: cdfl.Table for a DataFrame or a .csv file, "
    "cdfl.Texts for a folder of texts, cdfl.Windows for series"
)

Data = Any  # a pair (inputs, targets) of tensors, arrays or lists; a torch Dataset; a cdfl.data.Dataset


def clusters_of(given: Any) -> Clusters:
    """Return a recipe: the given one, or one made of each cluster's data, by name or in a list.

    >>> clusters_of({"north": ([[0.0], [1.0]] * 4, [0, 1] * 4)}).num_clusters
    1
    """
    if callable(getattr(given, "build", None)) and not isinstance(given, type):
        recipe: Clusters = given
        return recipe
    if isinstance(given, Mapping):
        named = {str(name): data for name, data in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, str):
        named = {f"cluster {number}": data for number, data in enumerate(given)}
    else:
        raise DataError(f"clusters are {_described(given)}; expected for each cluster its data, by name: {FORMS}")
    if not named:
        raise DataError("there are no clusters; expected the data of one at least")
    return Datasets(tuple(to_dataset(name, data) for name, data in named.items()))


def to_dataset(name: str, data: Data) -> Dataset:
    """Return a cluster's data as a dataset. A fixed quarter of the samples becomes the test half."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, TorchDataset):
        data = _stacked(name, data)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise DataError(f"cluster {name!r} is {_described(data)}; expected {FORMS}")
    inputs, targets = to_tensor(name, "inputs", data[0]), to_tensor(name, "targets", data[1])
    if targets.dtype == torch.uint8:
        targets = targets.long()
    return halved(name, inputs, targets)


def halved(
    name: str,
    inputs: Tensor,
    targets: Tensor,
    num_classes: int | None = None,
    groups: Tensor | None = None,
    notes: tuple[str, ...] = (),
) -> Dataset:
    """Divide samples into halves: a fixed quarter, the same for every seed, is the test half. Groups stay whole."""
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        raise DataError(f"cluster {name!r} has {_count(inputs)} inputs and {_count(targets)} targets; expected as many")
    kinds = torch.arange(len(inputs)) if groups is None else groups.unique()
    if len(kinds) < 4:
        one, many = ("sample", "samples") if groups is None else ("group of samples", "groups of samples")
        raise DataError(
            f"cluster {name!r} has {len(kinds)} {one if len(kinds) == 1 else many}; expected at least 4 to divide: "
            "add some, join it with another cluster, or leave it out"
        )
    for which, values in (("inputs", inputs), ("targets", targets)):
        check_finite(f"cluster {name!r}", which, values)  # here, where samples have the numbers that the user knows
    order = torch.from_numpy(generator(0, "halves").permutation(len(kinds)))
    chosen = kinds[order[: max(2, round(TEST_SHARE * len(kinds)))]]
    is_test = torch.isin(torch.arange(len(inputs)) if groups is None else groups, chosen)
    if num_classes is None and not targets.is_floating_point():
        num_classes = int(targets.max()) + 1
        check_classes(f"cluster {name!r}", targets, num_classes)
    return Dataset(
        name,
        inputs[~is_test],
        targets[~is_test],
        inputs[is_test],
        targets[is_test],
        num_classes,
        notes=notes,
        train_groups=None if groups is None else groups[~is_test],
        test_groups=None if groups is None else groups[is_test],
    )


def to_tensor(name: str, what: str, values: Any) -> Tensor:
    """Return values as a tensor: float32, int64, or uint8 for images."""
    where = f"cluster {name!r}: {what}"
    if isinstance(values, np.ndarray) and values.dtype == np.uint8 and values.ndim == 4:
        return channels_first(f"cluster {name!r}", values)
    if not isinstance(values, Tensor):
        values = _from_array(where, values)
    if values.is_complex():
        raise DataError(f"{where} are complex numbers; expected real ones: use their real and imaginary parts")
    if values.is_floating_point():
        return torch.Tensor.float(values.detach())
    return values if values.dtype == torch.uint8 else torch.Tensor.long(values)


def _from_array(where: str, values: Any) -> Tensor:
    if isinstance(values, list | tuple) and values and all(isinstance(part, Tensor) for part in values):
        _check_shapes(where, values)
        return torch.stack(list(values))
    if isinstance(values, list | tuple) and len({_length(part) for part in values}) > 1:
        _refuse_ragged(where, values)
    try:
        array = np.asarray(values)
    except ValueError:
        _refuse_ragged(where, values)
    if array.dtype.kind == "O":
        array = _numbers(where, array)
    if array.dtype.kind in "UST":
        words = next((word for word in array.flat if not _is_number(word)), array.flat[0])
        raise DataError(
            f"{where} hold words, such as {str(words)!r}; expected numbers: numpy.unique(words, "
            "return_inverse=True)[1] gives every word one"
        )
    if array.dtype.kind in "mM":
        raise DataError(
            f"{where} hold dates, such as {str(array.flat[0])!r}; expected numbers, such as the days since the first"
        )
    if array.dtype.kind not in "biufc":
        raise DataError(f"{where} are {array.dtype}; expected numbers")
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array))  # a copy: arrays may be read-only


def _numbers(where: str, array: np.ndarray) -> np.ndarray:
    """Return an array of objects as numbers."""
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        odd = next(value for value in array.flat if not isinstance(value, int | float | np.number))
        raise DataError(f"{where} hold {odd!r}; expected numbers: drop such samples, or replace the values") from None


def _length(part: Any) -> int | None:
    """Return the number of values of a sample; None for a number or a word."""
    return len(part) if isinstance(part, Sized) and not isinstance(part, str | bytes) else None


def _is_number(word: Any) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _check_shapes(where: str, tensors: Sequence[Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            raise DataError(
                f"{where}: sample {number} has shape {list(tensor.shape)} and sample 0 {list(tensors[0].shape)}; "
                "expected one shape: pad or cut them"
            )


def _refuse_ragged(where: str, values: Any) -> None:
    lengths = [_length(part) for part in values]
    number = next((place for place, length in enumerate(lengths) if length != lengths[0]), 0)
    if number:
        raise DataError(
            f"{where}: sample {number} has {lengths[number]} values and sample 0 {lengths[0]}; expected one length: "
            "pad or cut them"
        )
    raise DataError(f"{where} cannot be read as numbers of one shape; expected a tensor or an array")


def _stacked(name: str, dataset: TorchDataset[Any]) -> tuple[Any, Any]:
    """Return all samples of a map-style torch dataset as a pair."""
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise DataError(f"cluster {name!r} is a dataset without a length; expected one with len() and dataset[i]")
    pairs = [dataset[number] for number in range(len(dataset))]
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"cluster {name!r}: sample {number} is {_described(pair)}; expected a pair (input, target)")
    if not pairs:
        raise DataError(f"cluster {name!r} has no samples; expected at least 4")
    inputs, targets = zip(*pairs, strict=True)
    if not isinstance(inputs[0], Tensor | np.ndarray | int | float | list | tuple):
        raise DataError(
            f"cluster {name!r}: inputs are {_described(inputs[0])}; expected tensors: for pictures, set the dataset's "
            "transform to torchvision.transforms.PILToTensor()"
        )
    if isinstance(inputs[0], np.ndarray):
        return [torch.as_tensor(one) for one in inputs], list(targets)
    return list(inputs), list(targets)


def _described(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    return f"of type {name}"


def _count(tensor: Tensor) -> int:
    return len(tensor) if tensor.ndim else 0
