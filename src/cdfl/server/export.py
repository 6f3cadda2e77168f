"""Read the cluster models of a store, to export them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from cdfl.core import Layout
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreError
from cdfl.server.store_records import numbers


def cluster_models(
    store: Store, epoch: int | None = None, progress: Callable[[int, int], None] | None = None
) -> tuple[Layout, list[Tensor], dict[str, Any]]:
    """Return the layout, the models, and what is known about them; `epoch` is that of a snapshot, None for now."""
    layout = store.layout()
    if epoch is None:
        recovered = store.recover(progress)
        if recovered is None:
            raise StoreError("the store is empty; there is nothing to export")
        state, settings = recovered.state, recovered.settings
    else:
        snapshot = store.snapshot_at(epoch)
        state, settings = store.load_state(snapshot, layout), snapshot.settings
    about = {
        "epoch": state.epoch,
        "num_clusters": state.num_clusters,
        "cluster_epochs": state.cluster_epochs.tolist(),
        "cluster_losses": numbers(state.cluster_losses),
        "settings": settings.to_dict(),
    }
    return layout, list(state.cluster_models), about
