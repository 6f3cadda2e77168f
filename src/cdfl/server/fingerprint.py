"""A fingerprint of what the losses of a server depend on, so that other data at a restart are noticed."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cdfl.problems import ProblemInstance


def fingerprints_of(instance: ProblemInstance) -> dict[str, str]:
    """Return a digest of what losses depend on, to notice at a restart that it has changed."""
    return {
        "proxy_sets": fingerprint(instance.proxy_sets),
        "loss": fingerprint(instance.loss),
        "model": fingerprint(_description(instance.model)),
    }


def _description(model: nn.Module) -> list[str]:
    """Return how a network is built, and the source of what is not torch's: equal weights may compute other outputs."""
    own = {type(part) for part in model.modules() if not type(part).__module__.startswith("torch.")}
    return [repr(model), *sorted(map(_source, own))]


def fingerprint(value: Any) -> str:
    """Return a sha256 of tensors, arrays, numbers, texts, and lists, tuples and dicts of them.

    Of a function it is that of its source, of any other object that of its type.

    >>> one, other = torch.zeros(2), torch.zeros(3)
    >>> fingerprint([one, "a"]) == fingerprint([one.clone(), "a"]), fingerprint([one]) == fingerprint([other])
    (True, False)
    """
    digest = hashlib.sha256()
    _add(digest.update, value)
    return digest.hexdigest()


def _add(update: Callable[[bytes], None], value: Any) -> None:
    update(type(value).__name__.encode() + b":")
    if isinstance(value, Tensor):
        update(f"{value.dtype}{tuple(value.shape)}".encode())
        update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for name, part in value.items():
            _add(update, name)
            _add(update, part)
    elif isinstance(value, list | tuple):
        update(str(len(value)).encode())
        for part in value:
            _add(update, part)
    elif isinstance(value, str | bytes | int | float | bool | None):
        update(repr(value).encode())
    elif hasattr(value, "__array_interface__"):
        update(str(value.dtype).encode() + str(value.shape).encode() + value.tobytes())
    elif callable(value):
        update(_source(value).encode())


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
