"""Samples in memory: the result of every source, and the input of every cluster."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cdfl.data.errors import DataError

Half = Literal["train", "test"]  # the two halves in which datasets are published
HALVES: tuple[Half, Half] = ("train", "test")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Inputs and targets in two halves, checked when they are created.

    Inputs are uint8 images (N, C, H, W), or floating-point numbers or int64 tokens (N, ...). Targets are int64 classes
    or floating-point numbers (N, ...).
    """

    name: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int | None  # None if the targets are not classes
    class_names: tuple[str, ...] = ()  # in the order of their numbers; empty if classes have no names
    notes: tuple[str, ...] = ()  # what a reader of results should know about the data
    train_groups: Tensor | None = None  # int64 (N,): samples of one group are never divided between two sets
    test_groups: Tensor | None = None

    def __post_init__(self) -> None:
        if self.class_names and not self.num_classes == len(self.class_names) == len(set(self.class_names)):
            raise DataError(
                f"{self.name}: {len(self.class_names)} class names for {self.num_classes} classes; "
                "expected a different one for each"
            )
        for half in HALVES:
            _check_half(f"{self.name} {half}", *self.half(half), self.num_classes)
        _check_alike(self.name, self.train_inputs, self.test_inputs, self.train_targets, self.test_targets)

    @classmethod
    def from_arrays(
        cls,
        name: str,
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray],
        num_classes: int | None = None,
        class_names: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Dataset:
        """Make a dataset of images from `(images, labels)` arrays with images as `(N, H, W)` or `(N, H, W, C)`.

        >>> images = np.zeros((2, 4, 4, 3), np.uint8)
        >>> Dataset.from_arrays("mine", (images, [0, 1]), (images, [1, 0])).input_shape
        (3, 4, 4)
        """
        labels = [_whole(f"{name} {half}", given) for half, (_, given) in (("train", train), ("test", test))]
        if num_classes is None:
            num_classes = len(class_names) or 1 + max(int(part.max()) if len(part) else 0 for part in labels)
        return cls(
            name,
            channels_first(name, train[0]),
            labels[0],
            channels_first(name, test[0]),
            labels[1],
            num_classes,
            class_names,
            notes,
        )

    def __repr__(self) -> str:
        sizes = f"{len(self.train_inputs)} + {len(self.test_inputs)} samples"
        return f"Dataset({self.name!r}, {sizes}, inputs {list(self.input_shape)} {_kind(self.train_inputs)})"

    def to_jsonable(self) -> dict[str, object]:
        """Return what a run's config stores of it: enough to notice other data."""
        digest = hashlib.sha256()
        for half in HALVES:
            for tensor in self.half(half):
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        shapes = {str(half): [list(tensor.shape) for tensor in self.half(half)] for half in HALVES}
        return {"name": self.name, **shapes, "sha256": digest.hexdigest()[:16]}

    @property
    def is_image(self) -> bool:
        """Whether the inputs are images, whose pixels are scaled for the network."""
        return self.train_inputs.dtype == torch.uint8

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; channels, height and width of an image."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one target."""
        return tuple(self.train_targets.shape[1:])

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        return self.train_inputs.device

    def half(self, half: Half) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of one half."""
        if half == "train":
            return self.train_inputs, self.train_targets
        return self.test_inputs, self.test_targets

    def groups(self, half: Half) -> np.ndarray | None:
        """Return the group of each sample of one half; None if every sample is its own."""
        groups = self.train_groups if half == "train" else self.test_groups
        return None if groups is None else groups.cpu().numpy()

    def to(self, device: torch.device | str) -> Dataset:
        """Copy the dataset to another device."""
        return replace(
            self,
            train_inputs=self.train_inputs.to(device),
            train_targets=self.train_targets.to(device),
            test_inputs=self.test_inputs.to(device),
            test_targets=self.test_targets.to(device),
        )


def _whole(name: str, labels: np.ndarray) -> Tensor:
    """Return labels as int64; raise DataError for a fraction."""
    labels = np.asarray(labels).reshape(-1)
    if labels.dtype.kind in "fO":
        wrong = [label for label in labels.tolist() if not (isinstance(label, Real) and label % 1 == 0)]
    else:
        wrong = [] if labels.dtype.kind in "iub" else labels.tolist()
    if wrong:
        raise DataError(f"{name}: label {wrong[0]!r} is not a whole number; number the classes 0, 1, 2, ...")
    return torch.from_numpy(labels.astype(np.int64))


def channels_first(name: str, images: np.ndarray) -> Tensor:
    """Return uint8 images (N, H, W) or (N, H, W, C) as a tensor (N, C, H, W)."""
    images = np.asarray(images)
    if images.dtype != np.uint8:
        raise DataError(f"{name}: images must be uint8, got {images.dtype}; scale them to 0..255 first")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4:
        raise DataError(f"{name}: images must be (N, H, W) or (N, H, W, C), got {images.shape}")
    return torch.from_numpy(np.require(images.transpose(0, 3, 1, 2), requirements=["C", "W"]))


def _check_half(name: str, inputs: Tensor, targets: Tensor, num_classes: int | None) -> None:
    things = "images" if inputs.dtype == torch.uint8 else "samples"
    if not (inputs.is_floating_point() or inputs.dtype == torch.int64 or (things == "images" and inputs.ndim == 4)):
        raise DataError(
            f"{name}: inputs are {_kind(inputs)} {tuple(inputs.shape)}; expected floating-point numbers, int64 tokens, "
            "or images in uint8 (N, C, H, W)"
        )
    if inputs.ndim == 0 or not len(inputs):
        raise DataError(f"{name}: there are no {things}; at least one is needed")
    if targets.ndim == 0 or len(targets) != len(inputs):
        raise DataError(f"{name}: {len(inputs)} {things} need as many targets, got {_kind(targets)} {_shape(targets)}")
    if not (targets.is_floating_point() or targets.dtype == torch.int64):
        raise DataError(f"{name}: targets are {_kind(targets)}; expected int64 classes or floating-point numbers")
    check_finite(name, "inputs", inputs)
    check_finite(name, "targets", targets)
    if num_classes is not None:
        check_classes(name, targets, num_classes)


def check_classes(name: str, targets: Tensor, num_classes: int) -> None:
    """Raise DataError unless targets are classes in int64, from 0 on."""
    if targets.dtype != torch.int64:
        raise DataError(f"{name}: classes are {_kind(targets)}; expected int64, numbered 0..{num_classes - 1}")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        at = int((targets == wrong).flatten(1).any(dim=1).nonzero()[0]) if targets.ndim > 1 else _first(targets, wrong)
        raise DataError(
            f"{name}: label {wrong} of sample {at} is out of range; {num_classes} classes are numbered "
            f"0..{num_classes - 1}"
        )


def _first(targets: Tensor, wrong: int) -> int:
    return int((targets == wrong).nonzero()[0])


def check_finite(name: str, what: str, values: Tensor) -> None:
    """Raise DataError for NaN and infinity."""
    if not values.is_floating_point() or bool(torch.isfinite(values).all()):
        return
    wrong = ~torch.isfinite(values)
    first = [int(place) for place in wrong.nonzero()[0]]
    bad = int(wrong.flatten(1).any(dim=1).sum()) if values.ndim > 1 else int(wrong.sum())
    raise DataError(
        f"{name}: {what}{first} is {float(values[tuple(first)])}, and {bad} of {len(values)} samples have such values; "
        "drop these samples, or fill the values"
    )


def _check_alike(name: str, train: Tensor, test: Tensor, train_targets: Tensor, test_targets: Tensor) -> None:
    if train.dtype == test.dtype == torch.uint8 and train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{name}: train images are {tuple(train.shape[1:])} (C, H, W) and test images {tuple(test.shape[1:])}; "
            "resize them to one size"
        )
    for what, one, other in (("inputs", train, test), ("targets", train_targets, test_targets)):
        if (one.shape[1:], one.dtype) != (other.shape[1:], other.dtype):
            raise DataError(
                f"{name}: train {what} are {_kind(one)} {_shape(one)} and test {what} {_kind(other)} {_shape(other)}; "
                "expected one shape and type"
            )


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
