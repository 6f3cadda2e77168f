"""The router as the body of a message: safetensors with its tensors; numbers and its description in the metadata."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cdfl.core.router import Router
from cdfl.core.strange_inputs import Known
from cdfl.wire.errors import MalformedError
from cdfl.wire.model_body import Buffer

KNOWN = ("known_inputs", "known_features")


@dataclass(frozen=True, eq=False)
class RouterMessage:
    """A router, and what a client must know to use it as the server does."""

    router: Router
    spec: Mapping[str, Any] | None  # for `models.routers.build_router`; None: the problem brings its own module
    loss_scale: float  # makes losses of experts evidence
    reply_clusters: str = "all"  # `RateSettings.reply_clusters` and `rate_floor` of the server
    rate_floor: float | str = 0.0
    takes_mixtures: bool = True  # whether uploads may bring a mixture


def encode_router(message: RouterMessage) -> bytes:
    """Return the body; the same router gives the same bytes."""
    router = message.router
    tensors: dict[str, Tensor] = {"model": router.model, "bias": router.bias, "confusion": router.confusion}
    numbers: dict[str, Any] = {"temperature": router.temperature, "accuracy": router.accuracy}
    for name in KNOWN:
        known: Known | None = getattr(router, name)
        if known is not None:
            tensors |= {f"{name}.means": known.means, f"{name}.whitening": known.whitening}
            numbers[name] = [known.nearest, known.farthest]
    for name in ("spec", "loss_scale", "reply_clusters", "rate_floor", "takes_mixtures"):
        numbers[name] = getattr(message, name)
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return save(own, {"router": json.dumps(numbers, sort_keys=True)})


def decode_router(body: Buffer) -> RouterMessage:
    """Return the router in a body."""
    try:
        (length,) = struct.unpack("<Q", body[:8])
        numbers = json.loads(json.loads(bytes(body[8 : 8 + length]))["__metadata__"]["router"])
        tensors = load(bytes(body))
        known = {
            name: Known(tensors[f"{name}.means"], tensors[f"{name}.whitening"], *map(float, numbers.pop(name)))
            if name in numbers
            else None
            for name in KNOWN
        }
        if known["known_features"] is None or not all(bool(torch.isfinite(own).all()) for own in tensors.values()):
            raise ValueError("a number is missing or not finite")
        router = Router(
            tensors["model"],
            float(numbers.pop("temperature")),
            tensors["bias"],
            tensors["confusion"],
            float(numbers.pop("accuracy")),
            known["known_inputs"],
            known["known_features"],
        )
        return RouterMessage(router, **numbers)
    except (ValueError, KeyError, TypeError, RecursionError, struct.error, SafetensorError) as error:
        raise MalformedError(f"the body is not a router: {str(error)[:80]}") from None
