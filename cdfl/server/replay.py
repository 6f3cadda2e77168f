"""The journal, run again: what recovery and `cdfl verify` do with it. No proxy data are needed."""

import torch
from torch import Tensor

from cdfl.core import Hyperparams, Reply, ServerState, Upload, join, server_update
from cdfl.server.journal import Entry, StoreDamaged
from cdfl.server.snapshots import to_losses


def replay(
    state: ServerState,
    entry: Entry,
    local_model: Tensor | None,
    hyperparams: Hyperparams,
    last_mixture: tuple[float, ...] | None = None,
    *,
    anew: bool = False,
) -> tuple[ServerState, Reply]:
    """The state after an entry and the reply to it, from the state before: `core.server_update` again.

    Recovery takes the recorded mixture, so its bits depend on no machine: the clusters become exactly those that the
    replies were made of. `anew=True` estimates again from the recorded losses, as the server did.
    An entry that moved nothing needs no `local_model`; it was answered with `last_mixture`.
    """
    if entry.epoch != state.epoch + 1:
        raise StoreDamaged(f"entry {state.epoch + 1} is missing, the next one is {entry.epoch}; restore a backup")
    if entry.outcome != "applied":
        state = state.replace(epoch=entry.epoch)
        return state, join(state, hyperparams, _tensor(last_mixture))
    if local_model is None:
        raise StoreDamaged(f"the upload of entry {entry.epoch} is missing; restore a backup, or `cdfl rollback`")
    known = {"losses": _tensor(entry.losses)} if anew else {"mixture": _tensor(entry.mixture)}
    upload = Upload(local_model, entry.base_epoch, entry.client_id, **known)
    losses = to_losses(entry.cluster_losses)
    state, reply = server_update(state, upload, hyperparams, evaluate=lambda _, clusters: losses[clusters])
    return state.replace(cluster_losses=losses), reply


def _tensor(values: tuple[float, ...] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float64)
