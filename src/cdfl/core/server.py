"""ServerUpdate of Algorithm 1: one upload in, the next state and one reply out."""

from dataclasses import replace

import torch
from torch import Tensor

from cdfl.core.accept import judge, remember
from cdfl.core.estimate import Estimator, estimate_mixture, measure, relative, usual_after
from cdfl.core.settings import Settings
from cdfl.core.state import Evaluate, NotFiniteError, Reply, ServerState, Upload, evaluated, is_finite
from cdfl.core.update import personalize, reply_weights, update_clusters, update_rates


def join(state: ServerState, settings: Settings, last_mixture: Tensor | None = None) -> Reply:
    """A model for a client that uploads nothing: a newcomer gets the average, a known one its last mixture.

    The epoch does not advance and no cluster moves.
    """
    return _reply_only(state, state.epoch, state.epoch, settings, last_mixture, deprecated=False)


def server_update(
    state: ServerState,
    upload: Upload,
    settings: Settings,
    evaluate: Evaluate,
    last_mixture: Tensor | None = None,
    estimate: Estimator = estimate_mixture,
) -> tuple[ServerState, Reply]:
    """Take one upload: estimate its mixture, move the clusters, answer with a personal model.

    `last_mixture` is the mixture of the last reply to this client, None for a newcomer; it answers an upload that is
    too old to be looked at. `evaluate` gives the losses of models on the proxy sets. `estimate` may be replaced.
    An upload that brings its own mixture is not estimated. With `max_harm`, one that would do harm, or some again and
    again, moves nothing; it is answered with its estimate all the same. Relative measures are relative to the uploads
    before this one, of those that were measured and not rejected.
    """
    _check(state, upload)
    epoch = state.epoch + 1
    staleness = epoch - upload.base_epoch
    if settings.max_staleness is not None and staleness > settings.max_staleness:
        reply = _reply_only(state, epoch, upload.base_epoch, settings, last_mixture, deprecated=True)
        return state.replace(epoch=epoch), replace(reply, past_harm=upload.past_harm)

    measures, harm, usual_harm, past_harm = None, None, None, upload.past_harm
    if upload.mixture is None:
        state = _look(state, evaluate)
        measures = measure(state, upload, evaluate)
        is_relative = settings.measures == "relative"
        compared = relative(measures, state.usual_measures) if is_relative else measures
        if settings.max_harm is not None:
            harm, usual_harm, past_harm, is_harmful = judge(state, measures, past_harm, settings.max_harm)
            state = state.replace(recent_harms=remember(state.recent_harms, harm))
            if is_harmful:
                # It may be honest, from a client whose data have changed: its own reply follows what it sent.
                known = bool(torch.stack(compared).isfinite().all())
                seen = estimate(*compared, settings) if known else last_mixture
                reply = _reply_only(state, epoch, upload.base_epoch, settings, seen, deprecated=False)
                reply = replace(reply, rejected=True, harm=harm, usual_harm=usual_harm, past_harm=past_harm)
                return state.replace(epoch=epoch), replace(reply, measures=measures)
        mixture = _checked(estimate(*compared, settings), state.num_clusters)
        if is_relative:
            state = state.replace(usual_measures=usual_after(state.usual_measures, measures, epoch))
    else:
        mixture = _checked(upload.mixture, state.num_clusters)
    rates, cluster_epochs = update_rates(mixture, epoch, upload.base_epoch, state.cluster_epochs, settings)
    base_model = base_model_of(state, upload, settings, last_mixture)
    cluster_models = update_clusters(state.cluster_models, upload.local_model, rates, base_model, state.num_parameters)
    reply = Reply(
        personal_model=personalize(cluster_models, reply_weights(mixture, settings)),
        epoch=epoch,
        mixture=mixture,
        rates=rates,
        staleness=staleness,
        deprecated=False,
        harm=harm,
        usual_harm=usual_harm,
        past_harm=past_harm,
        measures=measures,
    )
    state = state.replace(
        cluster_models=cluster_models,
        cluster_losses=torch.where(rates == 0, state.cluster_losses, torch.nan),
        cluster_epochs=cluster_epochs,
        epoch=epoch,
    )
    # Whoever sends mixtures along needs no losses of clusters: they wait until somebody does.
    return (_look(state, evaluate) if upload.mixture is None else state), reply


def base_model_of(state: ServerState, upload: Upload, settings: Settings, last_mixture: Tensor | None) -> Tensor | None:
    """Where a step along the change begins: the model this client was sent or, where that is gone, today's.

    None where clusters move towards the upload, and nobody needs it.
    """
    if settings.cluster_step == "towards":
        return None
    if upload.base_model is not None:
        return upload.base_model
    return join(state, settings, last_mixture).personal_model


def _look(state: ServerState, evaluate: Evaluate) -> ServerState:
    """A state that knows F(w_k; D_k) of every cluster: only those that moved since are evaluated."""
    moved = state.cluster_losses.isnan().nonzero().flatten()  # (moved,)
    if len(moved) == 0:
        return state
    first, last = int(moved[0]), int(moved[-1])
    if len(moved) == last - first + 1:  # neighbours, or one, or all: a view is enough
        models = state.cluster_models[first : last + 1]
    else:
        models = state.cluster_models[moved.to(state.cluster_models.device)]
    losses = evaluated(f"the losses of clusters {moved.tolist()}", evaluate, models, moved)
    return state.replace(cluster_losses=state.cluster_losses.index_copy(0, moved, losses))


def _reply_only(
    state: ServerState,
    epoch: int,
    base_epoch: int,
    settings: Settings,
    mixture: Tensor | None,
    *,
    deprecated: bool,
) -> Reply:
    """A reply that moves no cluster; without a mixture, the average of them."""
    uniform = torch.full((state.num_clusters,), 1 / state.num_clusters, dtype=torch.float64)
    mixture = uniform if mixture is None else _checked(mixture, state.num_clusters)
    return Reply(
        personal_model=personalize(state.cluster_models, reply_weights(mixture, settings)),
        epoch=epoch,
        mixture=mixture,
        rates=torch.zeros_like(uniform),
        staleness=epoch - base_epoch,
        deprecated=deprecated,
    )


def _check(state: ServerState, upload: Upload) -> None:
    expected = tuple(state.cluster_models.shape[1:])
    if tuple(upload.local_model.shape) != expected:
        raise ValueError(
            f"the uploaded model has shape {tuple(upload.local_model.shape)}; expected {expected}, as the clusters: "
            "it belongs to another model"
        )
    if not is_finite(upload.local_model):
        raise NotFiniteError("the uploaded model contains NaN or infinity; train again with a smaller learning_rate")
    if not 0 <= upload.base_epoch <= state.epoch:
        raise ValueError(
            f"base_epoch is {upload.base_epoch}; expected 0 to {state.epoch}, the server's epoch: "
            "it is the epoch of the last reply to this client"
        )


def _checked(mixture: Tensor, num_clusters: int) -> Tensor:
    mixture = mixture.double().cpu()
    if mixture.shape != (num_clusters,):
        raise ValueError(f"the mixture has shape {tuple(mixture.shape)}; expected ({num_clusters},)")
    fine = torch.isfinite(mixture).all() and (mixture >= 0).all() and (mixture.sum() - 1).abs() < 1e-6
    if not bool(fine):
        raise ValueError(f"the mixture is {mixture.tolist()}; expected shares of at least 0 that sum to one")
    return mixture
