"""Cluster models as the body of a message: safetensors with the parts of `core.quantization.QuantizedModels`."""

import json
import struct
from functools import lru_cache
from math import prod
from typing import cast, get_args

import torch
from torch import Tensor

from cdfl.core import Layout
from cdfl.core.quantization import ExpertType, QuantizedModels, dequantize, quantize, quantized_sizes
from cdfl.core.state import is_finite
from cdfl.wire.errors import MalformedError, UnfitError
from cdfl.wire.model_body import Buffer

PARTS = ("matrices", "scales", "rest")
_CODES = {torch.int8: "I8", torch.float16: "F16", torch.float32: "F32"}


def encode_experts(models: Tensor, layout: Layout, dtype: ExpertType = "int8") -> tuple[bytes, ...]:
    """Return the header and the data of the body for models (K, P)."""
    if not is_finite(models):
        raise UnfitError("a cluster model contains NaN or infinity")
    quantized = quantize(models.detach().to("cpu", torch.float32), layout, dtype)
    return _header(layout, len(models), dtype), *(part.contiguous().numpy().tobytes() for part in quantized)


def experts_size(layout: Layout, num_clusters: int, dtype: ExpertType = "int8") -> int:
    """Return the number of bytes that `encode_experts` writes."""
    shapes = _parts(layout, num_clusters, dtype)
    return len(_header(layout, num_clusters, dtype)) + sum(prod(shape) * kind.itemsize for kind, shape in shapes)


def expert_type(body: Buffer, layout: Layout, num_clusters: int) -> ExpertType | None:
    """Return how the experts in a body are rounded; None if it holds something else, such as one model."""
    for dtype in get_args(ExpertType):
        header = _header(layout, num_clusters, dtype)
        if bytes(body[: len(header)]) == header:
            return cast("ExpertType", dtype)
    return None


def decode_experts(body: Buffer, layout: Layout, num_clusters: int, dtype: ExpertType = "int8") -> Tensor:
    """Return the models (K, P) in a body; it must be laid out as `encode_experts` writes it, and finite."""
    header = _header(layout, num_clusters, dtype)
    size = experts_size(layout, num_clusters, dtype)
    if bytes(body[: len(header)]) != header or len(body) != size:
        raise MalformedError(
            f"the body has {len(body)} bytes; expected {size}, {num_clusters} experts of this model in {dtype}"
        )
    parts, begin = [], len(header)
    for kind, shape in _parts(layout, num_clusters, dtype):
        end = begin + prod(shape) * kind.itemsize
        parts.append(
            torch.frombuffer(bytearray(body[begin:end]), dtype=kind).view(shape)
            if end > begin
            else torch.empty(shape, dtype=kind)
        )
        begin = end
    models = dequantize(QuantizedModels(*parts), layout, dtype)
    if not is_finite(models):
        raise UnfitError("an expert contains NaN or infinity")
    return models


def _parts(layout: Layout, num_clusters: int, dtype: ExpertType) -> list[tuple[torch.dtype, tuple[int, int]]]:
    kinds = (torch.float16 if dtype == "float16" else torch.int8, torch.float32, torch.float32)
    return [(kind, (num_clusters, size)) for kind, size in zip(kinds, quantized_sizes(layout, dtype), strict=True)]


@lru_cache(maxsize=16)
def _header(layout: Layout, num_clusters: int, dtype: ExpertType) -> bytes:
    tensors, begin = {}, 0
    for name, (kind, shape) in zip(PARTS, _parts(layout, num_clusters, dtype), strict=True):
        end = begin + prod(shape) * kind.itemsize
        tensors[name] = {"dtype": _CODES[kind], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
