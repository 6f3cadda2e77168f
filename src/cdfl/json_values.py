"""Turn settings into JSON values that are equal in every process, so that stored settings can be compared."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import torch


def jsonable(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Return a value as numbers, strings, lists and dicts.

    An object becomes its class name and attributes, a function or class its qualified name. An object with a method
    `to_jsonable` decides itself. `inside` holds the ids of the enclosing objects, to stop at cycles.

    >>> class Nightly:
    ...     def __init__(self, hour):
    ...         self.hour = hour
    >>> jsonable(Nightly(3))
    {'kind': 'Nightly', 'hour': 3}
    >>> jsonable({"network": torch.nn.Linear, "shape": (1, 8, 8)})
    {'network': 'torch.nn.modules.linear.Linear', 'shape': [1, 8, 8]}
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, torch.nn.Module):
        return repr(value)
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return value.tolist()
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    within = (*inside, id(value))
    if isinstance(value, partial):
        return [jsonable(part, within) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, Mapping):
        return {str(key): jsonable(part, within) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [jsonable(part, within) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((jsonable(part, within) for part in value), key=repr)
    if hasattr(value, "to_jsonable"):
        return value.to_jsonable()
    kind = {"kind": type(value).__name__}
    if id(value) in inside:
        return kind
    if is_dataclass(value):
        return kind | {field.name: jsonable(getattr(value, field.name), within) for field in fields(value)}
    if hasattr(value, "__dict__"):
        return kind | {name: jsonable(own, within) for name, own in vars(value).items()}
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))  # the address differs in every process
