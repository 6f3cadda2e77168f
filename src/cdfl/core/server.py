"""ServerUpdate of Algorithm 1: one upload in, the next state and one reply out.

docs/concepts.md has the paper's algorithms line by line, with the function of each line.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from cdfl.core.defence import Defence
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
from cdfl.core.update import personalize, reply_weights, take_step, update_rates

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
    The settings choose the estimator and the defence unless they are passed. The defence is ours; `NO_DEFENCE` is the
    paper's. The reply carries one model; with `settings.replies.reply="experts"`, the caller sends the clusters, too.
    """
    estimator, defence = estimator or estimator_of(settings), defence or defence_of(settings)
    _check(state, upload)
    t, tau = state.epoch + 1, upload.base_epoch  # t <- t + 1
    if is_too_stale(t - tau, settings.rates):  # t - tau > tau_0: w_k <- w_k
        return _deprecated_reply(state, upload, client, settings, defence)
    upload = upload.replace(base_model=base_model_of(state, upload, settings, client, defence))
    upload, verdict = defence.admit(state, upload, client)  # may shorten v - u
    if not verdict.is_accepted:
        return _rejected_reply(state, upload, client, UNMEASURED, verdict, settings)

    measured, upload = with_losses(state, upload, estimator, evaluate)  # F(w_k; D_k), F(v; D_k)
    # alpha_m <- DistributionEstimation(...), beta_m <- UpdateRatioCompute(...)
    decision = estimate_and_rate(measured, upload, t, settings, estimator)
    mixture = _checked(decision, measured.num_clusters)
    # The losses of the clusters after the step; NaN if the defence did not need them.
    rates, cluster_losses, verdict = defence.limit(measured, upload, decision.rates, client, settings.rates, evaluate)
    if not verdict.is_accepted:
        return _rejected_reply(state, upload, client, decision.measures, verdict, settings)

    state = state.replace(
        epoch=t,
        cluster_models=take_step(state, upload, rates, settings.rates),  # w_k <- update_clusters(w_k, beta_mk, v)
        cluster_losses=cluster_losses,
        cluster_epochs=decision.cluster_epochs,
        estimator_memory=decision.estimator_memory,
        defence_memory=defence.remember(state.defence_memory, verdict),
    )
    if estimator.needs_measures:
        state = reevaluated(state, evaluate)  # now, so that the next upload does not wait for it
    personal_model = personalize(state.cluster_models, reply_weights(mixture, settings.rates))  # sum_k alpha_mk w_k
    return state, Reply(personal_model, t, mixture, rates, t - tau, "applied", decision.measures, verdict)


class Decision(NamedTuple):
    """The result of Algorithm 2 for one upload."""

    measures: Measures  # l, d1, d2
    mixture: Tensor  # (K,) alpha_hat
    estimator_memory: Tensor  # after this upload
    rates: Tensor  # (K,) beta_mk
    cluster_epochs: Tensor  # (K,) e_k after this upload


def estimate_and_rate(
    state: ServerState, upload: Upload, epoch: int | Tensor, settings: Settings, estimator: Estimator
) -> Decision:
    """Run Algorithm 2: DistributionEstimation, then UpdateRatioCompute.

    The upload must have its losses if the estimator needs measures. No branch depends on the value of a tensor, so a
    CUDA graph can capture it; `epoch` and `upload.base_epoch` may be tensors.
    """
    measures = measure(state, upload) if estimator.needs_measures else UNMEASURED
    memory = state.estimator_memory if state.estimator_memory.numel() else estimator.begin(state.num_clusters)
    mixture, memory = estimator(upload, measures, memory, epoch)
    _check_shape(mixture, state.num_clusters)
    rates, cluster_epochs = update_rates(mixture, epoch, upload.base_epoch, state.cluster_epochs, settings.rates)
    return Decision(measures, mixture, memory, rates, cluster_epochs)


def join(state: ServerState, settings: Settings, client: ClientMemory = NEWCOMER) -> Reply:
    """Answer a client without an upload: a new client gets the average, a known one its last mixture.

    Algorithm 1 sends the average of the clusters at the start (Initialization); later newcomers get today's average.
    The epoch does not advance and no cluster moves.
    """
    return _mixed_reply(state, state.epoch, client.mixture, settings).replace(verdict=Verdict(client=client.defence))


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
    return _mixed_reply(state, state.epoch, client.mixture, settings).personal_model


def _mixed_reply(state: ServerState, epoch: int, mixture: Tensor | None, settings: Settings) -> Reply:
    """Return a reply with the clusters as they are, averaged by a mixture; equally if there is none."""
    uniform = torch.full((state.num_clusters,), 1 / state.num_clusters, dtype=torch.float64)
    mixture = uniform if mixture is None else _checked_mixture(mixture, state.num_clusters)
    personal_model = personalize(state.cluster_models, reply_weights(mixture, settings.rates))
    return Reply(personal_model, epoch, mixture, torch.zeros_like(uniform), 0)


def _deprecated_reply(
    state: ServerState, upload: Upload, client: ClientMemory, settings: Settings, defence: Defence
) -> tuple[ServerState, Reply]:
    """Answer an upload that is too old with its client's last mixture.

    Deviations: a client without a mixture gets the average. A defence may not count the upload as an epoch: it would
    age the uploads of others.
    """
    staleness = state.epoch + 1 - upload.base_epoch
    state = state.replace(epoch=state.epoch + 1) if defence.counts_deprecated else state
    reply = _mixed_reply(state, state.epoch, client.mixture, settings)
    return state, reply.replace(staleness=staleness, outcome="deprecated", verdict=Verdict(client=client.defence))


def _rejected_reply(
    state: ServerState, upload: Upload, client: ClientMemory, measures: Measures, verdict: Verdict, settings: Settings
) -> tuple[ServerState, Reply]:
    """Answer a rejected upload with the model that its client was sent. The client learns nothing new."""
    last = _mixed_reply(state, upload.base_epoch, client.mixture, settings)
    base_model = last.personal_model if upload.base_model is None else upload.base_model
    staleness = state.epoch + 1 - upload.base_epoch
    reply = last.replace(
        personal_model=base_model, staleness=staleness, outcome="rejected", measures=measures, verdict=verdict
    )
    return state, reply


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


def _checked(decision: Decision, num_clusters: int) -> Tensor:
    """Return the decision's mixture; raise if it or the measures are no numbers to decide by."""
    if decision.measures is not UNMEASURED:
        check_numbers("the distances of the upload", decision.measures.distances, num_clusters)
    return _checked_mixture(decision.mixture, num_clusters)


def _checked_mixture(mixture: Tensor, num_clusters: int) -> Tensor:
    _check_shape(mixture, num_clusters)
    mixture = mixture.double().cpu()
    is_fine = torch.isfinite(mixture).all() and (mixture >= 0).all() and (mixture.sum() - 1).abs() < 1e-6
    if not bool(is_fine):
        raise ValueError(f"the mixture is {mixture.tolist()}; expected shares of at least 0 that sum to one")
    return mixture


def _check_shape(mixture: Tensor, num_clusters: int) -> None:
    if mixture.shape != (num_clusters,):
        raise ValueError(f"the mixture has shape {tuple(mixture.shape)}; expected ({num_clusters},)")
