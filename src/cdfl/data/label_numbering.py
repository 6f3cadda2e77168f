"""Number the classes of several datasets by their names."""

from dataclasses import replace

import torch

from cdfl.data.dataset import Dataset
from cdfl.data.errors import DataError


def one_numbering(datasets: list[Dataset]) -> list[Dataset]:
    """Return the datasets renumbered, so that a class name has the same number in all: its position in sorted order.

    Datasets without class names keep their numbers. They can be combined with named ones only if the names are 0, 1,
    and so on, one for each class.

    >>> import numpy as np
    >>> half = np.zeros((2, 4, 4), np.uint8), [0, 1]
    >>> first = Dataset.from_arrays("first", half, half, class_names=("car", "dog"))
    >>> second = Dataset.from_arrays("second", half, half, class_names=("bike", "car"))
    >>> [(data.num_classes, data.train_targets.tolist()) for data in one_numbering([first, second])]
    [(3, [1, 2]), (3, [0, 1])]
    """
    given = {dataset.class_names for dataset in datasets if dataset.class_names}
    if not given:
        return datasets
    names = given.pop() if len(given) == 1 else tuple(sorted({name for names in given for name in names}))
    return [_renumbered(data, names) if data.class_names else _checked(data, names) for data in datasets]


def _renumbered(dataset: Dataset, names: tuple[str, ...]) -> Dataset:
    numbers = torch.tensor([names.index(name) for name in dataset.class_names], device=dataset.train_targets.device)
    return replace(
        dataset,
        train_targets=numbers[dataset.train_targets],
        test_targets=numbers[dataset.test_targets],
        num_classes=len(names),
        class_names=names,
    )


def _checked(dataset: Dataset, names: tuple[str, ...]) -> Dataset:
    """Return a dataset without class names; raise DataError if it does not fit these names."""
    in_place = all(name.isdecimal() and int(name) == at for at, name in enumerate(names))  # class 7 has the name "7"
    if dataset.num_classes != len(names) or not in_place:
        few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise DataError(
            f"{dataset.name} has {dataset.num_classes} numbered classes and other sources have {len(names)} named "
            f"ones ({few}), which cannot be matched; give {dataset.name} class_names (in an .npz file an "
            "array of words, class 0 first), or name the classes of the others 0, 1, ..."
        )
    return dataset
