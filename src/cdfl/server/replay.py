"""The journal, run again: what recovery and `cdfl verify` do with it. No proxy data are needed."""

import torch
from torch import Tensor

from cdfl.core import Measures, Reply, ServerState, Settings, Upload, join, server_update, usual_after
from cdfl.core.accept import remember
from cdfl.server.journal import Entry, StoreDamaged
from cdfl.server.snapshots import to_losses


def replay(
    state: ServerState,
    entry: Entry,
    local_model: Tensor | None,
    settings: Settings,
    last_mixture: tuple[float, ...] | None = None,
    *,
    base_model: Tensor | None = None,
    anew: bool = False,
) -> tuple[ServerState, Reply]:
    """The state after an entry and the reply to it, from the state before: `core.server_update` again.

    Recovery takes what was measured and decided as it is recorded, so its bits depend on no machine: the clusters
    become exactly those that the replies were made of; an entry that moved nothing needs no `local_model`.
    `base_model` is what that was trained from; steps along the change need it.
    `anew=True` decides again from the recorded losses, as the server did; `last_mixture` is that of the client before,
    which answers an upload that was too old.
    """
    if entry.epoch != state.epoch + 1:
        raise StoreDamaged(f"entry {state.epoch + 1} is missing, the next one is {entry.epoch}", "restore a backup")
    mixture = _tensor(last_mixture)
    if entry.outcome != "applied" and not anew:
        state = state.replace(epoch=entry.epoch, recent_harms=_harms(state, entry))
        estimated = entry.outcome == "rejected" and entry.mixture != ()  # (): its client was forgotten
        return state, join(state, settings, _tensor(entry.mixture) if estimated else mixture)
    if local_model is None:
        raise StoreDamaged(f"the upload of entry {entry.epoch} is missing")
    if base_model is None and settings.cluster_step == "along" and entry.outcome == "applied":
        raise StoreDamaged(f"the model that the upload of entry {entry.epoch} was trained from is missing")
    measured = entry.outcome == "applied" and entry.losses is not None  # a rejected one may be beyond all numbers
    if measured and entry.distances is None and settings.measures == "relative":
        raise StoreDamaged(f"the distances of entry {entry.epoch} are missing")
    known = {"losses": _tensor(entry.losses)} if anew else {"mixture": _tensor(entry.mixture)}
    upload = Upload(
        local_model, entry.base_epoch, entry.client_id, base_model=base_model, past_harm=entry.past_harm, **known
    )
    losses = to_losses(entry.cluster_losses)
    after, reply = server_update(state, upload, settings, lambda _, clusters: losses[clusters], mixture)
    if not anew:
        usual = _usual(state, entry, settings)
        after = after.replace(cluster_losses=losses, recent_harms=_harms(state, entry), usual_measures=usual)
    return after, reply


def _harms(before: ServerState, entry: Entry) -> Tensor:
    """What the server remembered of harms after this entry."""
    return before.recent_harms if entry.harm is None else remember(before.recent_harms, entry.harm)


def _usual(before: ServerState, entry: Entry, settings: Settings) -> Tensor:
    """What measures were usual after this entry, which was applied."""
    losses, distances = _tensor(entry.losses), _tensor(entry.distances)
    if losses is None or distances is None or settings.measures == "plain":
        return before.usual_measures
    measures = Measures(losses, (before.cluster_losses - losses).abs(), distances)
    return usual_after(before.usual_measures, measures, entry.epoch)


def _tensor(values: tuple[float, ...] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float64)
