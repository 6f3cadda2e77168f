"""Serialize objects for Ray's object store: tensors lie in it as arrays, which all processes of a node share."""

import importlib
import io
import pickle
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cdfl.user_code import own_modules

SMALL = 2**16  # bytes: smaller tensors travel with the rest, and may be changed in place
Form = tuple[torch.dtype, torch.Size]


@dataclass(frozen=True, eq=False)
class Serialized:
    """An object without its tensors, and the bytes of each tensor."""

    rest: bytes
    arrays: list[np.ndarray]  # uint8 (n,) each
    forms: list[Form]


def serialize(value: Any, modules: Sequence[ModuleType] = ()) -> Serialized:
    """Serialize an object. Code of these modules and of a user's files travels with it; other code is imported."""
    cloudpickle: Any = importlib.import_module("ray.cloudpickle")
    places: dict[int, int] = {}  # id of a tensor -> its place: one that is used twice travels once
    tensors: list[Tensor] = []

    class TensorPickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, found: Any) -> int | None:
            if type(found) is not Tensor or found.requires_grad or found.nbytes < SMALL:
                return None
            if id(found) not in places:
                places[id(found)] = len(tensors)
                tensors.append(found)
            return places[id(found)]

    rest = io.BytesIO()
    with _by_value([*own_modules(), *modules]):
        pickler: Any = TensorPickler
        pickler(rest).dump(value)
    arrays = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in tensors]
    return Serialized(rest.getvalue(), arrays, [(tensor.dtype, tensor.shape) for tensor in tensors])


def deserialize(serialized: Serialized) -> Any:
    """Return the object. Its large tensors lie in shared memory and must not be changed in place."""
    tensors = [_tensor(array, form) for array, form in zip(serialized.arrays, serialized.forms, strict=True)]

    class TensorUnpickler(pickle.Unpickler):
        def persistent_load(self, place: Any) -> Tensor:
            return tensors[int(place)]

    return TensorUnpickler(io.BytesIO(serialized.rest)).load()


def _tensor(array: np.ndarray, form: Form) -> Tensor:
    dtype, shape = form
    with warnings.catch_warnings():  # torch has no read-only tensors
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array).view(dtype).view(shape)


@contextmanager
def _by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Let code of these modules be serialized itself, not by the name under which another process cannot import it."""
    cloudpickle: Any = importlib.import_module("ray.cloudpickle")
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
