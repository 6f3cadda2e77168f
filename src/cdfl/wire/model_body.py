"""A model as the body of a message: safetensors, parsed strictly and, if possible, without a copy.

A body is 8 bytes (the length n of the header), n bytes of JSON, and the tensors. Tensors are written in the order of
the model's vector, so a body is a header and the vector. They are read in any order.
"""

import json
import mmap
import struct
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cdfl.core import Layout
from cdfl.core.state import is_finite
from cdfl.wire.errors import MalformedError, UnfitError

DType = Literal["float32", "float16", "bfloat16"]
DTYPES: dict[DType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_CODES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CODE_OF = {dtype: code for code, dtype in _CODES.items()}

Buffer = bytes | bytearray | memoryview | mmap.mmap

# Limits of a received header, since parsing JSON costs memory: this many times the length of ours, or this many bytes.
HEADER_SLACK = 4
SHORT_HEADER = 2**16


def encode_model(vector: Tensor, layout: Layout, dtype: DType = "float32") -> bytes:
    """Return the body for a model (P,).

    >>> layout = Layout.of(torch.nn.Linear(2, 1))
    >>> body = encode_model(torch.tensor([1.0, 2.0, 3.0]), layout, "float16")
    >>> decode_model(body, layout)
    tensor([1., 2., 3.])
    """
    return b"".join(body_parts(vector, layout, dtype))


def body_parts(vector: Tensor, layout: Layout, dtype: DType = "float32") -> tuple[bytes, memoryview]:
    """Return the header and the data of a body. The data are the vector's memory if no conversion is needed."""
    layout.check(vector)
    if dtype not in DTYPES:
        raise MalformedError(f"dtype is {str(dtype)[:40]!r}; expected one of {', '.join(DTYPES)}")
    values = vector.detach().to("cpu", DTYPES[dtype]).contiguous()
    if not is_finite(values):
        raise UnfitError(f"the model holds values that do not fit {dtype}; ask for float32 or bfloat16")
    return _header(layout, values.dtype), values.view(torch.uint8).numpy().data


def body_size(layout: Layout, dtype: DType = "float32") -> int:
    """Return the number of bytes that `encode_model` writes."""
    return len(_header(layout, DTYPES[dtype])) + layout.size * DTYPES[dtype].itemsize


def decode_file(path: Path, layout: Layout) -> Tensor:
    """Return the model (P,) in a file, as float32. The vector maps the file; writing to it does not change the file."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            raise MalformedError("the body is empty; expected a model as safetensors")
        return decode_model(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), layout)


def decode_model(body: Buffer, layout: Layout, *, is_checked: bool = False) -> Tensor:
    """Return the model (P,) in a body, as float32.

    The body must hold every tensor of the layout and nothing else, all of one dtype and finite. With `is_checked`, the
    values are known to be finite and are not tested again. If the body is writable and in the layout's order, the
    vector shares its memory.
    """
    data, tensors = _read_header(body, layout)
    dtype = _same_dtype(tensors)
    spans = _spans(tensors, layout, dtype, len(body) - data)
    values = _tensor(body, data, layout.size, dtype)
    if [begin for begin, _ in spans] != sorted(begin for begin, _ in spans):
        size = dtype.itemsize
        values = torch.cat([values[begin // size : end // size] for begin, end in spans])
    if not is_checked and not is_finite(values):
        raise UnfitError("the model contains NaN or infinity; train again with a smaller learning_rate")
    return values.float()


@lru_cache(maxsize=16)
def _header(layout: Layout, dtype: torch.dtype) -> bytes:
    tensors, begin = {}, 0
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        end = begin + prod(shape) * dtype.itemsize
        tensors[name] = {"dtype": _CODE_OF[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
    return struct.pack("<Q", len(text)) + text


def _read_header(body: Buffer, layout: Layout) -> tuple[int, dict[str, Any]]:
    """Return where the data begin, and the header's entry for each tensor."""
    if len(body) < 8:
        raise MalformedError(f"the body has {len(body)} bytes; expected a model as safetensors")
    (length,) = struct.unpack("<Q", body[:8])
    longest = max(SHORT_HEADER, HEADER_SLACK * len(_header(layout, torch.float32)))
    if length > longest:
        raise MalformedError(f"the safetensors header claims {length} bytes; expected at most {longest} for this model")
    if length > len(body) - 8:
        raise MalformedError(f"the safetensors header claims {length} bytes, {len(body) - 8} came; the body is cut off")
    try:
        tensors = json.loads(bytes(body[8 : 8 + length]), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"the safetensors header is not valid JSON: {str(error)[:80]}") from None
    if not isinstance(tensors, dict):
        raise MalformedError("the safetensors header is not a JSON object; expected one entry for each tensor")
    tensors.pop("__metadata__", None)
    _check_names(tensors, layout)
    return 8 + length, tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _check_names(tensors: dict[str, Any], layout: Layout) -> None:
    missing = [name for name in layout.names if name not in tensors]
    unknown = sorted(set(tensors) - set(layout.names))
    if missing or unknown:
        lacks = f"lacks {_some(missing)}" if missing else ""
        extra = f"has {_some(unknown)}, which the model does not have" if unknown else ""
        raise UnfitError(f"the body {' and '.join(filter(None, (lacks, extra)))}; expected the names of /v1/status")
    for name, entry in tensors.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise MalformedError(f"the entry of tensor {name!r} is not a dtype, a shape and data_offsets")


def _same_dtype(tensors: dict[str, Any]) -> torch.dtype:
    """Return the dtype, which all tensors must share."""
    names = {str(entry["dtype"])[:40] for entry in tensors.values()}
    if len(names) != 1 or names - set(_CODES):
        raise UnfitError(f"the tensors are {_some(sorted(names))}; expected all of them in one of {', '.join(_CODES)}")
    return _CODES[names.pop()]


def _spans(tensors: dict[str, Any], layout: Layout, dtype: torch.dtype, length: int) -> list[tuple[int, int]]:
    """Return the span of each tensor in the data. Together they must fill it without gap or overlap."""
    spans: list[tuple[int, int]] = []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        entry = tensors[name]
        if not _are_counts(entry["shape"]) or tuple(entry["shape"]) != tuple(shape):
            raise UnfitError(f"tensor {name!r} has shape {str(entry['shape'])[:80]}; expected {list(shape)}")
        span, size = entry["data_offsets"], prod(shape) * dtype.itemsize
        if not _are_counts(span) or len(span) != 2 or span[1] - span[0] != size:
            raise MalformedError(f"tensor {name!r} has data_offsets {str(span)[:80]}; expected a span of {size} bytes")
        spans.append((span[0], span[1]))
    reached = 0
    for begin, end in sorted(spans):
        if begin != reached:
            raise MalformedError(f"the tensors leave a gap or overlap at byte {min(begin, reached)} of the data")
        reached = end
    if reached != length:
        raise MalformedError(f"the tensors take {reached} bytes, {length} came; the body is cut off or too long")
    return spans


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _tensor(body: Buffer, start: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return the values in a buffer: without a copy if it is writable and aligned."""
    if not memoryview(body).readonly and start % dtype.itemsize == 0:
        return torch.frombuffer(body, dtype=dtype, count=count, offset=start)
    values = torch.empty(count, dtype=dtype)
    values.view(torch.uint8).numpy()[:] = np.frombuffer(body, np.uint8, count * dtype.itemsize, start)
    return values


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name[:80]) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
