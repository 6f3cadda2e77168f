"""Cluster models as blobs, one each, and back: exactly the bits, or an error that says so."""

import math
import mmap
import time
from contextlib import suppress

import torch

from cdfl.core import Layout, ServerState, Settings
from cdfl.server.blobs import Blobs, digest_of, new_name
from cdfl.server.journal import Snapshot, StoreDamaged, StoreUnavailable
from cdfl.wire import body_parts, decode_model

REMEDY = "restore it from a backup, or go back with `cdfl rollback`"


def save_snapshot(state: ServerState, layout: Layout, settings: Settings, blobs: Blobs) -> Snapshot:
    """Write every cluster model; returns the row that makes them a snapshot. Durable after `blobs.settle()`."""
    names: list[str] = []
    digests: list[str] = []
    try:
        for model in state.cluster_models:
            parts = body_parts(model, layout)
            names.append(new_name("snapshot"))
            blobs.write(names[-1], parts)
            digests.append(digest_of(parts))
    except BaseException:
        with suppress(StoreUnavailable):
            blobs.delete(names)
        raise
    return Snapshot(
        epoch=state.epoch,
        created=time.time(),
        cluster_losses=from_losses(state.cluster_losses),
        cluster_epochs=tuple(state.cluster_epochs.tolist()),
        recent_harms=tuple(state.recent_harms.tolist()),
        usual_measures=tuple(state.usual_measures.flatten().tolist()),
        settings=settings,
        models=tuple(names),
        digests=tuple(digests),
    )


def load_state(snapshot: Snapshot, layout: Layout, blobs: Blobs) -> ServerState:
    """The state a snapshot was taken of."""
    models = [
        decode_model(read_exactly(blobs, name, digest), layout, ours=True)
        for name, digest in zip(snapshot.models, snapshot.digests, strict=True)
    ]
    return ServerState(
        cluster_models=torch.stack(models),
        cluster_losses=to_losses(snapshot.cluster_losses),
        cluster_epochs=torch.tensor(snapshot.cluster_epochs, dtype=torch.int64),
        epoch=snapshot.epoch,
        num_parameters=layout.num_parameters,
        recent_harms=torch.tensor(snapshot.recent_harms, dtype=torch.float64),
        usual_measures=torch.tensor(snapshot.usual_measures, dtype=torch.float64).reshape(3, -1),
    )


def read_exactly(blobs: Blobs, name: str, digest: str) -> bytearray | mmap.mmap:
    """A blob that must have this sha256."""
    data = blobs.view(name)
    if data is None:
        raise StoreDamaged(f"the blob {name} is missing", REMEDY)
    found = digest_of(data)
    if found != digest:
        what = f"the blob {name} is damaged: its sha256 is {found[:12]}..., expected {digest[:12]}..."
        raise StoreDamaged(what, REMEDY)
    return data


def to_losses(values: tuple[float | None, ...]) -> torch.Tensor:
    """Losses of clusters as the state has them: NaN where none was computed."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


def from_losses(losses: torch.Tensor) -> tuple[float | None, ...]:
    """The other way: NaN has no place in JSON."""
    return tuple(None if math.isnan(value) else value for value in losses.double().tolist())
