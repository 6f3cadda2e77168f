"""Quantize models for sending: matrices in int8, with a scale for each row, or in float16. Not in the paper."""

from itertools import accumulate
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cdfl.core.flat import Layout

ExpertType = Literal["int8", "float16", "float32"]
LEVELS = 127  # of int8, on both sides of 0
HALF = 65504.0  # the largest number of float16


class QuantizedModels(NamedTuple):
    """Models (K, P) with rounded matrices; everything else (vectors, statistics) stays as it is."""

    matrices: (
        Tensor  # (K, M) int8 or float16: the entries of tensors with two or more dimensions, in the layout's order
    )
    scales: Tensor  # (K, R) one for each row of those tensors, if they are int8
    rest: Tensor  # (K, S) the other entries


def quantize(models: Tensor, layout: Layout, dtype: ExpertType = "int8") -> QuantizedModels:
    """Round the matrices of models (K, P); in int8 with one scale for each row. "float32" rounds nothing.

    In int8, four models are as many bytes as one in float32.

    >>> layout = Layout.of(torch.nn.Linear(2, 1))
    >>> quantized = quantize(torch.tensor([[1.0, -0.5, 7.7]]), layout)
    >>> quantized.matrices, dequantize(quantized, layout)
    (tensor([[127, -64]], dtype=torch.int8), tensor([[ 1.0000, -0.5039,  7.7000]]))
    """
    matrices, scales, rest = [], [], []
    for tensor, is_matrix in _tensors(models, layout, dtype):
        if not is_matrix:
            rest.append(tensor.flatten(1))
        elif dtype == "float16":
            matrices.append(tensor.flatten(1).clamp(-HALF, HALF).half())
        else:
            scale = _scales(tensor)
            matrices.append((tensor / scale.clamp_min(1e-30)).round().to(torch.int8).flatten(1))
            scales.append(scale.flatten(1))
    rounded_type = torch.float16 if dtype == "float16" else torch.int8
    return QuantizedModels(_joined(matrices, models, rounded_type), _joined(scales, models), _joined(rest, models))


def dequantize(quantized: QuantizedModels, layout: Layout, dtype: ExpertType = "int8") -> Tensor:
    """Return the models (K, P) that `quantize` rounded."""
    models = quantized.rest.new_empty(len(quantized.rest), layout.size)
    taken = [0, 0, 0]

    def take(part: int, count: int) -> Tensor:
        begin, taken[part] = taken[part], taken[part] + count
        return quantized[part][:, begin : taken[part]]

    for tensor, is_matrix in _tensors(models, layout, dtype):
        entries = take(0 if is_matrix else 2, tensor[0].numel()).view(tensor.shape)
        if is_matrix and dtype == "int8":
            scale = take(1, tensor.shape[1])
            tensor.copy_(entries * scale.view(scale.shape + (1,) * (tensor.ndim - 2)))
        else:
            tensor.copy_(entries)
    return models


def rounded(models: Tensor, layout: Layout, dtype: ExpertType = "int8") -> Tensor:
    """Return models (K, P) as a client restores them: `dequantize(quantize(models))`, without the way there."""
    if dtype == "float32":
        return models
    found = models.clone()
    for tensor, is_matrix in _tensors(found, layout, dtype):
        if is_matrix and dtype == "float16":
            tensor.copy_(tensor.clamp(-HALF, HALF).half())
        elif is_matrix:
            scale = _scales(tensor)
            tensor.div_(scale.clamp_min(1e-30)).round_().mul_(scale)
    return found


def quantized_sizes(layout: Layout, dtype: ExpertType = "int8") -> tuple[int, int, int]:
    """Return the numbers M, R and S of one quantized model."""
    matrices = [
        shape for shape, is_matrix in zip(layout.shapes, _are_matrices(layout, dtype), strict=True) if is_matrix
    ]
    size = sum(shape.numel() for shape in matrices)
    return size, sum(shape[0] for shape in matrices) if dtype == "int8" else 0, layout.size - size


def _scales(matrices: Tensor) -> Tensor:
    """Return what one level stands for in each row of matrices (K, rows, ...), as (K, rows, 1, ...)."""
    return matrices.abs().amax(dim=tuple(range(2, matrices.ndim)), keepdim=True) / LEVELS


def _tensors(models: Tensor, layout: Layout, dtype: ExpertType) -> list[tuple[Tensor, bool]]:
    """Return the tensors of models (K, P) as views (K, ...), and whether each is rounded."""
    return list(zip(layout.views(models).values(), _are_matrices(layout, dtype), strict=True))


def _are_matrices(layout: Layout, dtype: ExpertType) -> list[bool]:
    """Return whether each tensor is rounded: those with two or more dimensions that are trained."""
    begins = accumulate((shape.numel() for shape in layout.shapes), initial=0)
    return [
        dtype != "float32" and len(shape) >= 2 and begin < layout.num_parameters
        for shape, begin in zip(layout.shapes, begins, strict=False)
    ]


def _joined(parts: list[Tensor], models: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.cat(parts, dim=1) if parts else models.new_empty(len(models), 0, dtype=dtype or models.dtype)
