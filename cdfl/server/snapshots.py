"""Cluster models as blobs, one each, and back: exactly the bits, or an error that says so."""

import hashlib
import math

import torch

from cdfl.core import Layout, ServerState
from cdfl.server.blobs import Blobs, new_name
from cdfl.server.journal import Snapshot, StoreDamaged
from cdfl.wire import body_parts, decode_model


def save_models(state: ServerState, layout: Layout, blobs: Blobs) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write every cluster model; returns the names of the blobs and their digests. Durable after `blobs.settle()`."""
    names, digests = [], []
    try:
        for model in state.cluster_models:
            parts = body_parts(model, layout)
            digest = hashlib.sha256()
            for part in parts:
                digest.update(part)
            names.append(new_name("snapshot"))
            blobs.write(names[-1], parts)
            digests.append(digest.hexdigest())
    except BaseException:
        blobs.delete(names)
        raise
    return tuple(names), tuple(digests)


def load_state(snapshot: Snapshot, layout: Layout, blobs: Blobs) -> ServerState:
    """The state a snapshot was taken of."""
    models = [
        decode_model(read_exactly(blobs, name, digest), layout)
        for name, digest in zip(snapshot.models, snapshot.digests, strict=True)
    ]
    return ServerState(
        cluster_models=torch.stack(models),
        cluster_losses=to_losses(snapshot.cluster_losses),
        cluster_epochs=torch.tensor(snapshot.cluster_epochs, dtype=torch.int64),
        epoch=snapshot.epoch,
        num_parameters=layout.num_parameters,
        recent_harms=torch.tensor(snapshot.recent_harms, dtype=torch.float64),
    )


def read_exactly(blobs: Blobs, name: str, digest: str) -> bytes:
    """A blob that must have this sha256."""
    data = blobs.read(name)
    if data is None:
        raise StoreDamaged(f"the blob {name} is missing; restore it from a backup, or go back with `cdfl rollback`")
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise StoreDamaged(
            f"the blob {name} is damaged: its sha256 is {found[:12]}..., expected {digest[:12]}...; "
            "restore it from a backup, or go back with `cdfl rollback`"
        )
    return data


def to_losses(values: tuple[float | None, ...]) -> torch.Tensor:
    """Losses of clusters as the state has them: NaN where none was computed."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


def from_losses(losses: torch.Tensor) -> tuple[float | None, ...]:
    """The other way: NaN has no place in JSON."""
    return tuple(None if math.isnan(value) else value for value in losses.double().tolist())
