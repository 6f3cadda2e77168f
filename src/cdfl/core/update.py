"""UpdateRatioCompute of Algorithm 2; moving the clusters; mixing the reply."""

import torch
from torch import Tensor

from cdfl.core.settings import RateSettings
from cdfl.core.state import ServerState, Upload

# A share that is below the floor by rounding alone reaches it.
ROUNDING = 1e-12


def update_rates(
    mixture: Tensor, epoch: int | Tensor, base_epoch: int | Tensor, cluster_epochs: Tensor, settings: RateSettings
) -> tuple[Tensor, Tensor]:
    """UpdateRatioCompute: return how far each cluster moves, beta_mk (K,), and the epochs e_k (K,) after the upload.

    As printed, e_k is t for every cluster that moves, so its staleness is t - tau.
    Deviations: with `cluster_epochs_set="after"`, the staleness test uses e_k from before this upload. With
    `shared_step` s, every cluster takes the share s of the step, and the mixture decides about the rest: what one
    cluster learns mostly helps the others, too.

    >>> fresh = RateSettings(base_rate=0.5, rate_floor="mean")
    >>> update_rates(torch.tensor([0.6, 0.4]), 1, 0, torch.tensor([0, 0]), fresh)
    (tensor([0.5000, 0.0000], dtype=torch.float64), tensor([1, 0]))
    """
    mixture = mixture.double()
    moves = reaches_floor(mixture, settings)
    shares = torch.where(moves, mixture / mixture.max(), 0.0)  # beta_1k
    if settings.shared_step > 0:
        shares = settings.shared_step + (1 - settings.shared_step) * shares
        moves = torch.ones_like(moves)
    moved_epochs = torch.where(moves, epoch, cluster_epochs)  # e_k <- t
    tested = moved_epochs if settings.cluster_epochs_set == "before" else cluster_epochs
    fading = staleness_factor(tested - base_epoch, settings)  # beta_2k
    return settings.base_rate * shares * fading, moved_epochs  # beta_mk = beta_0 beta_1k beta_2k


def staleness_factor(staleness: Tensor, settings: RateSettings) -> Tensor:
    """Return beta_2k: 1 while an upload is fresh, falling with its staleness after that.

    For a staleness s of b or more, the paper has 1 / (a s + 1), which jumps down at b.
    Deviation (the default): 1 / (a (s - b) + 1), FedAsync's continuous hinge.

    >>> ages = torch.tensor([4, 5, 6])
    >>> staleness_factor(ages, RateSettings(staleness_slope=1, staleness_grace=5, staleness_hinge="paper"))
    tensor([1.0000, 0.1667, 0.1429], dtype=torch.float64)
    >>> staleness_factor(ages, RateSettings(staleness_slope=1, staleness_grace=5))
    tensor([1.0000, 1.0000, 0.5000], dtype=torch.float64)
    """
    slope, grace = settings.staleness_slope, settings.staleness_grace
    staleness = staleness.double()
    counted = staleness if settings.staleness_hinge == "paper" else staleness - grace
    return torch.where(staleness < grace, 1.0, 1 / (slope * counted + 1))


def reaches_floor(mixture: Tensor, settings: RateSettings) -> Tensor:
    """Return which clusters have a share of at least `rate_floor` (K,), and so move."""
    floor = mixture.mean() if settings.rate_floor == "mean" else settings.rate_floor
    return mixture >= floor - ROUNDING


def update_clusters(
    cluster_models: Tensor,
    local_model: Tensor,
    rates: Tensor,
    base_model: Tensor | None = None,
    num_parameters: int | None = None,
) -> Tensor:
    """Return the cluster models after an upload, a new tensor (K, P).

    Deviation (the default): along v - u, where `base_model` u is what the upload was trained from:
    w_k <- w_k + beta_mk (v - u). The paper: towards v, w_k <- (1 - beta_mk) w_k + beta_mk v. That also pulls w_k
    towards u, an old mixture of all clusters; a step along v - u does not.
    Statistics, after the first `num_parameters` entries, always move towards the upload: the sum of several changes
    could make a variance negative.

    >>> clusters, upload, rates = torch.tensor([[0.0], [8.0]]), torch.tensor([4.0]), torch.tensor([0.25, 0.0])
    >>> update_clusters(clusters, upload, rates)
    tensor([[1.],
            [8.]])
    >>> update_clusters(clusters, upload, rates, base_model=torch.tensor([2.0]))
    tensor([[0.5000],
            [8.0000]])
    """
    local_model = local_model.to(cluster_models)
    num_along = 0 if base_model is None else cluster_models[:, :num_parameters].shape[1]
    change = None if base_model is None else local_model[:num_along] - base_model[:num_along].to(cluster_models)
    if rates.is_cuda:  # do not read which rates are 0: that would wait for the device
        rates = rates.to(cluster_models)[:, None]
        parts = []
        if change is not None:  # w_k + beta_mk (v - u)
            parts.append(cluster_models[:, :num_along] + rates * change)
        if num_along < len(local_model):  # (1 - beta_mk) w_k + beta_mk v
            parts.append((1 - rates) * cluster_models[:, num_along:] + rates * local_model[num_along:])
        moved = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        return torch.where(rates == 0, cluster_models, moved)  # rate 0 keeps every bit, signed zeros too
    moved = torch.empty_like(cluster_models)
    for before, after, rate in zip(cluster_models, moved, rates.to(cluster_models.dtype).tolist(), strict=True):
        if rate == 0:
            after.copy_(before)
            continue
        if change is not None:  # the same, without large temporary tensors
            torch.add(before[:num_along], change, alpha=rate, out=after[:num_along])
        if num_along < len(local_model):
            torch.mul(before[num_along:], 1 - rate, out=after[num_along:]).add_(local_model[num_along:] * rate)
    return moved


def take_step(state: ServerState, upload: Upload, rates: Tensor, settings: RateSettings) -> Tensor:
    """Return the clusters (K, P) after an upload: towards v, as in the paper, or along v - u."""
    base_model = upload.base_model if settings.cluster_step == "along" else None
    return update_clusters(state.cluster_models, upload.local_model, rates, base_model, state.num_parameters)


def losses_after(state: ServerState, rates: Tensor) -> Tensor:
    """Return the losses of the clusters (K,) after a step at `rates`: NaN, not evaluated yet, for those that moved."""
    return torch.where(rates == 0, state.cluster_losses, torch.nan)


def personalize(cluster_models: Tensor, mixture: Tensor) -> Tensor:
    """Return the model of one client, u = sum_k alpha_k w_k (P,).

    >>> personalize(torch.tensor([[0.0], [8.0]]), torch.tensor([0.75, 0.25]))
    tensor([2.])
    """
    return mixture.to(cluster_models) @ cluster_models


def reply_weights(mixture: Tensor, settings: RateSettings) -> Tensor:
    """Return the weights of the clusters in a reply (K,): the mixture, or its part that reaches the floor.

    Algorithm 1 mixes all clusters; "moved" follows the caption of the paper's workflow figure.
    """
    if settings.reply_clusters == "all":
        return mixture
    kept = torch.where(reaches_floor(mixture, settings), mixture, 0.0)
    total = kept.sum()
    return torch.where(total > 0, kept / total, mixture)  # if the floor is above every share, mix all
