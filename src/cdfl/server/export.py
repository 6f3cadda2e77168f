"""Export cluster models as safetensors files with the model's own tensor names."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from cdfl.server.errors import StoreError
from cdfl.server.records import numbers
from cdfl.server.store import Store
from cdfl.wire import DTYPES, DType, encode_model


def export(
    store: Store,
    folder: Path,
    epoch: int | None = None,
    dtype: str = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write cluster-0.safetensors, ... and clusters.json, which describes them, to a new or empty folder.

    `epoch` is that of a snapshot; None for the newest models.
    """
    kind = _dtype(dtype)
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise ValueError(f"{place} is not a folder; name a new or empty one")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; name a new folder")
    layout = store.layout()
    if epoch is None:
        recovered = store.recover(progress)
        if recovered is None:
            raise StoreError("the store is empty; there is nothing to export")
        state, settings = recovered.state, recovered.settings
    else:
        snapshot = store.snapshot_at(epoch)
        state, settings = store.load_state(snapshot, layout), snapshot.settings
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for cluster, model in enumerate(state.cluster_models):
        path = folder / f"cluster-{cluster}.safetensors"
        body = encode_model(model, layout, kind)
        path.write_bytes(body)
        files.append({"file": path.name, "sha256": hashlib.sha256(body).hexdigest()})
    about = {
        "epoch": state.epoch,
        "num_clusters": state.num_clusters,
        "cluster_epochs": state.cluster_epochs.tolist(),
        "cluster_losses": numbers(state.cluster_losses),
        "dtype": dtype,
        "clusters": files,
        "tensors": {name: list(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)},
        "num_parameters": layout.num_parameters,
        "settings": settings.to_dict(),
    }
    (folder / "clusters.json").write_text(json.dumps(about, indent=2) + "\n")
    return [*(folder / str(entry["file"]) for entry in files), folder / "clusters.json"]


def _dtype(name: str) -> DType:
    for known in DTYPES:
        if name == known:
            return known
    raise ValueError(f"dtype is {name!r}; expected one of {', '.join(DTYPES)}")
