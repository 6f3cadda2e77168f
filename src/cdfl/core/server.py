"""ServerUpdate of Algorithm 1: one upload in, the next state and one reply out."""

import torch
from torch import Tensor

from cdfl.core.defence import Decision, Defence
from cdfl.core.estimate import Estimator, estimator_of, measure, reevaluated, with_losses
from cdfl.core.guard import defence_of
from cdfl.core.settings import RateSettings, Settings
from cdfl.core.state import (
    UNMEASURED,
    ClientMemory,
    Evaluate,
    Measures,
    NotFiniteError,
    Reply,
    ServerState,
    Upload,
    Verdict,
    check_numbers,
    is_finite,
)
from cdfl.core.update import personalize, reply_weights, update_rates

NEWCOMER = ClientMemory()


def server_update(
    state: ServerState,
    upload: Upload,
    settings: Settings,
    evaluate: Evaluate,
    client: ClientMemory = NEWCOMER,
    *,
    estimator: Estimator | None = None,
    defence: Defence | None = None,
) -> tuple[ServerState, Reply]:
    """Estimate the upload's mixture, move the clusters, answer with a personal model.

    `evaluate` returns the losses of models on the proxy sets; `client` is `Reply.client` of this client's last reply.
    The settings choose the estimator and the defence unless they are passed.
    """
    estimator, defence = estimator or estimator_of(settings), defence or defence_of(settings)
    _check(state, upload)
    t, tau = state.epoch + 1, upload.base_epoch  # t <- t + 1
    if is_too_stale(t - tau, settings.rates):  # t - tau > tau_0: w_k <- w_k
        state = state.replace(epoch=t) if defence.counts_deprecated else state
        reply = _unmoved(state, state.epoch, client.mixture, settings)
        return state, reply.replace(staleness=t - tau, outcome="deprecated", verdict=Verdict(client=client.defence))
    upload = upload.replace(base_model=base_model_of(state, upload, settings, client, defence))
    admitted = defence.admit(state, upload, client)  # not in the paper
    if isinstance(admitted, Verdict):
        return state, _refusal(state, upload, client, UNMEASURED, admitted, settings)
    upload = admitted
    before = state
    if estimator.needs_measures:
        state, upload = with_losses(state, upload, evaluate)  # F(w_k; D_k), F(v; D_k)
    decision = decide(state, upload, t, settings, estimator)  # DistributionEstimation, UpdateRatioCompute
    if estimator.needs_measures:
        check_numbers("the distances of the upload", decision.measures.distances, state.num_clusters)
    mixture = _checked(decision.mixture, state.num_clusters)
    # The cluster update of Algorithm 1 (`take_step`), unless the defence shrinks or rejects it.
    step, verdict = defence.step(state, upload, decision, client, settings.rates, evaluate)
    if not verdict.is_accepted:
        return before, _refusal(before, upload, client, decision.measures, verdict, settings)
    state = state.replace(
        epoch=t,
        cluster_models=step.cluster_models,
        cluster_losses=step.cluster_losses,
        cluster_epochs=decision.cluster_epochs,
        estimator_memory=decision.estimator_memory,
        defence_memory=defence.remember(state.defence_memory, verdict),
    )
    personal_model = personalize(state.cluster_models, reply_weights(mixture, settings.rates))  # u_m
    reply = Reply(personal_model, t, mixture, step.rates, t - tau, "applied", decision.measures, verdict)
    return (reevaluated(state, evaluate) if estimator.needs_measures else state), reply


def decide(
    state: ServerState, upload: Upload, epoch: int | Tensor, settings: Settings, estimator: Estimator
) -> Decision:
    """Run Algorithm 2. The upload must have its losses if the estimator needs measures.

    No branch depends on the value of a tensor, so a CUDA graph can capture it; `epoch` and `upload.base_epoch` may be
    tensors.
    """
    measures = measure(state, upload) if estimator.needs_measures else UNMEASURED
    mixture, memory = estimator(upload, measures, state.estimator_memory, epoch)
    _check_shape(mixture, state.num_clusters)
    rates, cluster_epochs = update_rates(mixture, epoch, upload.base_epoch, state.cluster_epochs, settings.rates)
    return Decision(measures, mixture, memory, rates, cluster_epochs)


def join(state: ServerState, settings: Settings, client: ClientMemory = NEWCOMER) -> Reply:
    """Answer a client without an upload: a new client gets the average, a known one its last mixture.

    Algorithm 1 sends the average of the clusters at the start (Initialization); later newcomers get today's average.
    The epoch does not advance and no cluster moves.
    """
    return _unmoved(state, state.epoch, client.mixture, settings).replace(verdict=Verdict(client=client.defence))


def is_too_stale(staleness: int, settings: RateSettings) -> bool:
    """Return whether an upload is older than `max_staleness` (tau_0)."""
    return settings.max_staleness is not None and staleness > settings.max_staleness


def base_model_of(
    state: ServerState,
    upload: Upload,
    settings: Settings,
    client: ClientMemory = NEWCOMER,
    defence: Defence | None = None,
) -> Tensor | None:
    """Return u, what the upload was trained from; None if it is not stored and nothing needs it.

    If the model that the client was sent is not stored, its last mixture of the current clusters replaces it.
    """
    is_needed = settings.rates.cluster_step == "along" or (defence or defence_of(settings)).needs_base
    if upload.base_model is not None or not is_needed:
        return upload.base_model
    return join(state, settings, client).personal_model


def _unmoved(state: ServerState, epoch: int, mixture: Tensor | None, settings: Settings) -> Reply:
    """Reply without moving a cluster.

    Deviation: the paper answers a deprecated client with its last mixture; one without a mixture gets the average.
    """
    uniform = torch.full((state.num_clusters,), 1 / state.num_clusters, dtype=torch.float64)
    mixture = uniform if mixture is None else _checked(mixture, state.num_clusters)
    personal_model = personalize(state.cluster_models, reply_weights(mixture, settings.rates))
    return Reply(personal_model, epoch, mixture, torch.zeros_like(uniform), 0)


def _refusal(
    state: ServerState, upload: Upload, client: ClientMemory, measures: Measures, verdict: Verdict, settings: Settings
) -> Reply:
    """Answer a rejected upload with the model that its client was sent. It learns nothing new, and nothing changes."""
    last = _unmoved(state, upload.base_epoch, client.mixture, settings)
    base_model = last.personal_model if upload.base_model is None else upload.base_model
    staleness = state.epoch + 1 - upload.base_epoch
    return last.replace(
        personal_model=base_model, staleness=staleness, outcome="rejected", measures=measures, verdict=verdict
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
    _check_shape(mixture, num_clusters)
    mixture = mixture.double().cpu()
    is_fine = torch.isfinite(mixture).all() and (mixture >= 0).all() and (mixture.sum() - 1).abs() < 1e-6
    if not bool(is_fine):
        raise ValueError(f"the mixture is {mixture.tolist()}; expected shares of at least 0 that sum to one")
    return mixture


def _check_shape(mixture: Tensor, num_clusters: int) -> None:
    if mixture.shape != (num_clusters,):
        raise ValueError(f"the mixture has shape {tuple(mixture.shape)}; expected ({num_clusters},)")
