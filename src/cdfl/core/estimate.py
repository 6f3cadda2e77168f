"""DistributionEstimation of Algorithm 2: a client's mixture, from one uploaded model."""

import warnings
from typing import Protocol

import torch
from torch import Tensor

from cdfl.core.settings import Bar, Settings
from cdfl.core.state import Evaluate, Measures, ServerState, Upload, check_numbers, evaluated

# A sum smaller than this part of its terms' sizes is rounding, not information.
CANCELLED = 1e-6
# Uploads over which a measure's running mean reaches back.
RECENT = 50


class Estimator(Protocol):
    """Anything that turns measures into a mixture; `estimate_mixture` is the paper's.

    It gets the measures as they were taken or, where `settings.measures` is "relative", as `relative` made them.
    """

    def __call__(self, losses: Tensor, loss_gaps: Tensor, distances: Tensor, settings: Settings) -> Tensor:
        """Estimate the mixture (K,); it sums to one."""
        ...


def measure(state: ServerState, upload: Upload, evaluate: Evaluate) -> Measures:
    """Line 3 of DistributionEstimation: losses, loss gaps and distances of an upload."""
    models = state.cluster_models  # (K, P)
    trained = slice(0, state.num_parameters)
    local_model = upload.local_model.to(models)
    if upload.losses is None:
        everywhere = local_model.expand_as(models), torch.arange(state.num_clusters)
        losses = evaluated("the losses of the upload", evaluate, *everywhere)
    else:
        losses = upload.losses.double().cpu()
        check_numbers("the losses of the upload", losses, state.num_clusters)
    # One cluster after the other: a tensor of all differences would take longer to write than to add up.
    distances = torch.stack([torch.dist(model, local_model[trained]) for model in models[:, trained]])
    return Measures(losses, (state.cluster_losses - losses).abs(), distances.double().cpu())


def relative(measures: Measures, usual: Tensor) -> Measures:
    """Measures over what is usual for their cluster, times what is usual on average, so that bars keep their scale.

    Deviation: the paper compares measures as they are. But a proxy set that is harder than others makes every upload
    look far from its cluster, wherever its client is at home.

    >>> hard = Measures(*torch.tensor([[0.3, 1.5], [0.1, 0.4], [2.0, 2.0]]).double())
    >>> usual = torch.tensor([[0.2, 2.0], [0.1, 0.4], [0.0, 0.0]]).double()
    >>> relative(hard, usual).losses                                       # 1.5 and .75 times the usual, times 1.1
    tensor([1.6500, 0.8250], dtype=torch.float64)

    A measure stays as it is where nothing is usual yet, and where its usual value is not above 0 for every cluster:
    losses may be negative, and parts of those are no comparison. Like `usual_after`, this looks at no value.
    """
    factors = usual.mean(dim=1, keepdim=True) / usual  # (3, K)
    sound = ((usual > 0) & factors.isfinite()).all(dim=1, keepdim=True)
    return Measures(*(torch.stack(measures) * torch.where(sound, factors, 1.0)))


def usual_after(usual: Tensor, measures: Measures, epoch: int | Tensor) -> Tensor:
    """What is usual (3, K) after the upload of an epoch: a mean of all so far, later of about `RECENT` uploads.

    It begins as if an upload had come that is equally far from all clusters. A server that has lived without it, and
    begins now, needs about `RECENT` uploads until that beginning no longer counts.
    """
    latest = torch.stack(measures)  # (3, K)
    mean = latest.cumsum(dim=1)[:, -1:] / latest.shape[1]  # added in order: a recovered server has the same bits
    usual = torch.where(usual == 0, mean, usual)
    rate = 1 / torch.as_tensor(epoch + 1, dtype=torch.float64).clamp(max=RECENT)
    return usual + rate * (latest - usual)


def estimate_mixture(losses: Tensor, loss_gaps: Tensor, distances: Tensor, settings: Settings) -> Tensor:
    """Estimate a client's mixture (K,) from three measures (K,) of its upload; smaller means more alike.

    >>> import torch
    >>> near, far = torch.tensor([0.2, 1.0]), torch.tensor([1.0, 1.0])
    >>> estimate_mixture(near, near, far, Settings(sharpness=(2.0,)))      # softmax of 2*(.875, .125)
    tensor([0.8176, 0.1824], dtype=torch.float64)

    Deviation: where the printed formula has no value (one cluster; all measures equal under a "min" bar; terms that
    cancel) the measure says nothing, and counts the same for every cluster.
    """
    num_clusters = max(1, losses.numel())
    check_numbers("losses", losses, num_clusters)
    check_numbers("loss_gaps", loss_gaps, num_clusters)
    check_numbers("distances", distances, num_clusters)
    _warn_of_bar("loss_bar", losses, settings.loss_bar)
    _warn_of_bar("gap_bar", loss_gaps, settings.gap_bar)
    _warn_of_bar("distance_bar", distances, settings.distance_bar)
    return mixture_of(Measures(losses, loss_gaps, distances), settings)


def mixture_of(measures: Measures, settings: Settings) -> Tensor:
    """The arithmetic of `estimate_mixture`, without a look at any value: it can run on a device nobody waits for."""
    losses, loss_gaps, distances = measures
    num_clusters = len(losses)
    if num_clusters == 1:
        return torch.ones_like(losses, dtype=torch.float64)
    raw = settings.loss_weight * _likeness(losses, settings.loss_bar)
    raw += settings.gap_weight * _likeness(loss_gaps, settings.gap_bar)
    raw += settings.distance_weight * _likeness(distances, settings.distance_bar)
    mixture = raw / (num_clusters - 1)
    for factor in settings.softmax_factors(num_clusters):
        mixture = torch.softmax(mixture * factor, dim=0)
    return mixture


def _likeness(values: Tensor, bar: Bar) -> Tensor:
    """The share of the other clusters, sum_{i != k} x_i / sum_i x_i, of the values above the bar."""
    values = values.double()
    above = values - (values.min() if bar == "min" else bar)
    total = above.sum()
    says_nothing = total.abs() <= CANCELLED * above.abs().sum()
    return torch.where(says_nothing, 1 - 1 / len(above), 1 - above / total)


def _warn_of_bar(name: str, values: Tensor, bar: Bar) -> None:
    if bar != "min" and len(values) > 1 and bool((values < bar).any()):
        warnings.warn(  # always the same words, so that a run of many uploads shows them once
            f"{name} is {bar:g}, above a value it is taken from: the printed formula may then rank clusters "
            "upside down; 'min' never does",
            RuntimeWarning,
            stacklevel=3,
        )
