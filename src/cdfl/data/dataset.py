"""Labelled images in memory: the result of every source, and the input of every cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cdfl.data.errors import DataError

Half = Literal["train", "test"]  # the two halves in which datasets are published


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels, checked when they are created."""

    name: str
    train_images: Tensor  # uint8 (N, C, H, W)
    train_labels: Tensor  # int64 (N,)
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    class_names: tuple[str, ...] = ()  # in the order of their numbers; empty if classes have no names
    notes: tuple[str, ...] = ()  # what a reader of results should know about the data

    def __post_init__(self) -> None:
        if self.class_names and not self.num_classes == len(self.class_names) == len(set(self.class_names)):
            raise DataError(
                f"{self.name}: {len(self.class_names)} class names for {self.num_classes} classes; "
                "expected a different one for each"
            )
        _check_images(self.name, self.train_images, self.test_images)
        _check_labels(f"{self.name} train", self.train_images, self.train_labels, self.num_classes)
        _check_labels(f"{self.name} test", self.test_images, self.test_labels, self.num_classes)

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
        """Make a dataset from `(images, labels)` arrays with images as `(N, H, W)` or `(N, H, W, C)`.

        >>> images = np.zeros((2, 4, 4, 3), np.uint8)
        >>> Dataset.from_arrays("mine", (images, [0, 1]), (images, [1, 0])).input_shape
        (3, 4, 4)
        """
        labels = [_whole(f"{name} {half}", given) for half, (_, given) in (("train", train), ("test", test))]
        if num_classes is None:
            num_classes = len(class_names) or 1 + max(int(part.max()) if len(part) else 0 for part in labels)
        return cls(
            name,
            _channels_first(name, train[0]),
            labels[0],
            _channels_first(name, test[0]),
            labels[1],
            num_classes,
            class_names,
            notes,
        )

    def to_jsonable(self) -> str:
        """Return what a run's config stores of it."""
        return self.name

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width

    def half(self, half: Half) -> tuple[Tensor, Tensor]:
        """Return the images and labels of one published half."""
        if half == "train":
            return self.train_images, self.train_labels
        return self.test_images, self.test_labels

    def to(self, device: torch.device | str) -> Dataset:
        """Copy the dataset to another device."""
        return replace(
            self,
            train_images=self.train_images.to(device),
            train_labels=self.train_labels.to(device),
            test_images=self.test_images.to(device),
            test_labels=self.test_labels.to(device),
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


def _channels_first(name: str, images: np.ndarray) -> Tensor:
    images = np.asarray(images)
    if images.dtype != np.uint8:
        raise DataError(f"{name}: images must be uint8, got {images.dtype}; scale them to 0..255 first")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4:
        raise DataError(f"{name}: images must be (N, H, W) or (N, H, W, C), got {images.shape}")
    return torch.from_numpy(np.require(images.transpose(0, 3, 1, 2), requirements=["C", "W"]))


def _check_images(name: str, train: Tensor, test: Tensor) -> None:
    for half, images in (("train", train), ("test", test)):
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise DataError(
                f"{name}: {half} images must be uint8 (N, C, H, W), got {images.dtype} {tuple(images.shape)}"
            )
        if not len(images):
            raise DataError(f"{name}: there are no {half} images; at least one is needed")
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{name}: train images are {tuple(train.shape[1:])} (C, H, W) and test images {tuple(test.shape[1:])}; "
            "resize them to one size"
        )


def _check_labels(name: str, images: Tensor, labels: Tensor, num_classes: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (len(images),):
        raise DataError(
            f"{name}: {len(images)} images need as many int64 labels, got {labels.dtype} {tuple(labels.shape)}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        raise DataError(
            f"{name}: label {wrong} is out of range; {num_classes} classes are numbered 0..{num_classes - 1}"
        )
