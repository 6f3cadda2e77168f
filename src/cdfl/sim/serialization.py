"""Serialize records of clients and of the server: numbers as JSON, then the tensors' bytes. Reading runs no code."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from cdfl.algorithms import Assignment
from cdfl.core import ClientMemory, Measures, Reply, Verdict

KINDS: tuple[type, ...] = (Assignment, ClientMemory, Measures, Reply, Verdict)
ALIGNED = 64  # a tensor begins at a multiple of this many bytes


class Serializer:
    """Turns records into bytes: dataclasses and named tuples of tensors, numbers, words, tuples, lists and dicts.

    Tensors in `shared` are common to many records; a record has their names only.
    """

    def __init__(self, *kinds: type, shared: Mapping[str, Tensor] | None = None) -> None:
        self._kinds = {kind.__name__: kind for kind in (*KINDS, *kinds)}
        self._shared = dict(shared or {})
        self._names = {id(tensor): name for name, tensor in self._shared.items()}

    def num_bytes(self, value: Any) -> int:
        """Return the bytes of a value's tensors, without shared ones."""
        sizes = {id(tensor): tensor.nbytes for tensor in tensors_in(value)}
        return sum(size for own, size in sizes.items() if own not in self._names)

    def dumps(self, value: Any) -> bytes:
        """Return a value as bytes."""
        tensors: list[Tensor] = []
        numbers = self._split(value, tensors)
        arrays = [tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy() for tensor in tensors]
        about = [[str(tensor.dtype)[6:], list(tensor.shape), str(tensor.device)] for tensor in tensors]
        head = json.dumps([numbers, about]).encode()
        parts = [len(head).to_bytes(8, "little"), head]
        place = 8 + len(head)
        for array in arrays:
            parts += [bytes(-place % ALIGNED), array.tobytes()]
            place += -place % ALIGNED + array.nbytes
        return b"".join(parts)

    def loads(self, data: bytes | bytearray) -> Any:
        """Return the value of `dumps`."""
        place = 8 + int.from_bytes(data[:8], "little")
        numbers, about = json.loads(data[8:place])
        tensors, buffer = [], bytearray(data)
        for name, shape, device in about:
            place += -place % ALIGNED
            dtype, count = getattr(torch, name), _count(shape)
            flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=place) if count else torch.empty(0)
            tensors.append(flat.to(device, dtype).view(shape))
            place += count * dtype.itemsize
        return self._joined(numbers, tensors)

    def _split(self, value: Any, tensors: list[Tensor]) -> Any:
        """Return the numbers of a value; append its tensors to `tensors`."""
        if isinstance(value, Tensor):
            if id(value) in self._names:
                return {"shared": self._names[id(value)]}
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        name = type(value).__name__
        if self._kinds.get(name) is type(value):
            names = _field_names(value)
            return {"is": name, "with": {own: self._split(getattr(value, own), tensors) for own in names}}
        if isinstance(value, tuple | list):
            parts = [self._split(part, tensors) for part in value]
            return parts if isinstance(value, list) else {"tuple": parts}
        if isinstance(value, dict):
            return {"dict": [[key, self._split(part, tensors)] for key, part in value.items()]}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"{value!r} cannot be stored; expected tensors, numbers, words, and tuples or lists of them")

    def _joined(self, value: Any, tensors: list[Tensor]) -> Any:
        if isinstance(value, list):
            return [self._joined(part, tensors) for part in value]
        if not isinstance(value, dict):
            return value
        ((kind, inner), *_) = value.items()
        match kind:
            case "shared":
                return self._shared[inner]
            case "tensor":
                return tensors[inner]
            case "tuple":
                return tuple(self._joined(part, tensors) for part in inner)
            case "dict":
                return {key: self._joined(part, tensors) for key, part in inner}
        return self._kinds[inner](**{own: self._joined(part, tensors) for own, part in value["with"].items()})


def kinds_in(value: Any) -> list[type]:
    """Return the types of the records within a value, e.g. of the parts of a server's state."""
    parts = [getattr(value, own) for own in _field_names(value)] if _is_record(value) else value
    if not _is_record(value) and not isinstance(value, tuple | list):
        return []
    return [type(value)] * _is_record(value) + [kind for part in parts for kind in kinds_in(part)]


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors within records, tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value]
    if _is_record(value):
        return [tensor for own in _field_names(value) for tensor in tensors_in(getattr(value, own))]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def _is_record(value: Any) -> bool:
    return (is_dataclass(value) and not isinstance(value, type)) or hasattr(value, "_fields")


def _field_names(value: Any) -> list[str]:
    return list(value._fields) if hasattr(value, "_fields") else [field.name for field in fields(value)]


def _count(shape: list[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
