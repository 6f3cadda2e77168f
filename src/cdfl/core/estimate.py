"""DistributionEstimation of Algorithm 2: a client's mixture, from one uploaded model."""

import warnings
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from cdfl.core.settings import Bar, EstimateSettings, Settings
from cdfl.core.state import UNMEASURED, Evaluate, Measures, ServerState, Upload, check_numbers, evaluated

# A sum smaller than this share of its terms' sizes is rounding error.
CANCELLED = 1e-6
# Number of uploads in the running mean of a measure.
RECENT = 50


class Estimator(Protocol):
    """Estimates the mixture of an upload. It remembers one tensor between uploads, `ServerState.estimator_memory`.

    It must not branch on the values of tensors: on a GPU that would make every upload wait for the device.
    """

    needs_measures: ClassVar[bool]  # if not, uploads are not evaluated, and it is passed UNMEASURED

    def begin(self, num_clusters: int) -> Tensor:
        """Return the memory of a server that has seen no upload."""
        ...

    def __call__(
        self, upload: Upload, measures: Measures, memory: Tensor, epoch: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mixture (K,), which sums to one, and the memory after this upload."""
        ...


@dataclass(frozen=True)
class PrintedEstimator:
    """The paper's estimator: compares the raw measures."""

    settings: EstimateSettings
    needs_measures: ClassVar[bool] = True

    def begin(self, num_clusters: int) -> Tensor:
        """Remember nothing."""
        return torch.empty(0, dtype=torch.float64)

    def __call__(
        self, upload: Upload, measures: Measures, memory: Tensor, epoch: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Estimate from this upload alone."""
        return estimate_mixture(measures, self.settings), memory


@dataclass(frozen=True)
class RelativeEstimator:
    """Normalises each measure by its cluster's running mean, which is the memory (3, K).

    Deviation: the paper compares raw measures. But if a proxy set is harder than the others, every
    upload seems far from its cluster, including uploads of clients that belong to it.
    """

    settings: EstimateSettings
    needs_measures: ClassVar[bool] = True

    def begin(self, num_clusters: int) -> Tensor:
        """Return zeros: no upload yet."""
        return torch.zeros(3, num_clusters, dtype=torch.float64)

    def __call__(
        self, upload: Upload, measures: Measures, memory: Tensor, epoch: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compare with the uploads before this one, then remember it."""
        return estimate_mixture(relative(measures, memory), self.settings), means_after(memory, measures, epoch)


@dataclass(frozen=True)
class GivenMixture:
    """Takes the mixture that comes with the upload: from an oracle, or from the client itself."""

    needs_measures: ClassVar[bool] = False

    def begin(self, num_clusters: int) -> Tensor:
        """Remember nothing."""
        return torch.empty(0, dtype=torch.float64)

    def __call__(
        self, upload: Upload, measures: Measures, memory: Tensor, epoch: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the upload's mixture."""
        if upload.mixture is None:
            raise ValueError("the upload has no mixture; expected one, or an estimator that makes it")
        return upload.mixture, memory


GIVEN = GivenMixture()


def estimator_of(settings: Settings) -> Estimator:
    """Return the estimator that the settings name."""
    return (
        RelativeEstimator(settings.estimate)
        if settings.estimate.measures == "relative"
        else PrintedEstimator(settings.estimate)
    )


def with_losses(
    state: ServerState, upload: Upload, estimator: Estimator, evaluate: Evaluate
) -> tuple[ServerState, Upload]:
    """Return state and upload with F(w_k; D_k) and F(v; D_k), if the estimator needs them and they are not known."""
    if not estimator.needs_measures:
        return state, upload
    state = reevaluated(state, evaluate)
    if upload.losses is None:
        models = upload.local_model.to(state.cluster_models).expand_as(state.cluster_models)
        losses = evaluated("the losses of the upload", evaluate, models, torch.arange(state.num_clusters))
    else:
        losses = upload.losses.double().cpu()
        check_numbers("the losses of the upload", losses, state.num_clusters)
    return state, upload.replace(losses=losses)


def reevaluated(state: ServerState, evaluate: Evaluate) -> ServerState:
    """Return the state with F(w_k; D_k) of every cluster; only clusters that moved are evaluated."""
    moved = state.cluster_losses.isnan().nonzero().flatten()  # (moved,)
    if len(moved) == 0:
        return state
    first, last = int(moved[0]), int(moved[-1])
    if len(moved) == last - first + 1:  # contiguous: a view is enough
        models = state.cluster_models[first : last + 1]
    else:
        models = state.cluster_models[moved.to(state.cluster_models.device)]
    losses = evaluated(f"the losses of clusters {moved.tolist()}", evaluate, models, moved)
    return state.replace(cluster_losses=state.cluster_losses.index_copy(0, moved, losses))


def measure(state: ServerState, upload: Upload) -> Measures:
    """Return l, d1 and d2, the first lines of the loop of DistributionEstimation; UNMEASURED without losses.

    `with_losses` has evaluated F(v; D_k) and F(w_k; D_k).
    """
    if upload.losses is None:
        return UNMEASURED
    models, local_model = state.cluster_models[:, : state.num_parameters], upload.local_model[: state.num_parameters]
    if models.is_cuda:
        distances = (models - local_model).norm(dim=1)
    else:  # cluster by cluster: writing a tensor of all differences takes longer than summing it
        distances = torch.stack([torch.dist(model, local_model.to(models)) for model in models])
    return Measures(
        upload.losses, (state.cluster_losses - upload.losses).abs(), distances.double().to(upload.losses.device)
    )


def relative(measures: Measures, means: Tensor) -> Measures:
    """Divide each measure by its cluster's running mean; multiply by the average mean, so that bars keep their scale.

    >>> hard = Measures(*torch.tensor([[0.3, 1.5], [0.1, 0.4], [2.0, 2.0]]).double())
    >>> means = torch.tensor([[0.2, 2.0], [0.1, 0.4], [0.0, 0.0]]).double()
    >>> relative(hard, means).losses                                       # 1.5 and .75 times the mean, times 1.1
    tensor([1.6500, 0.8250], dtype=torch.float64)

    A measure is not normalised if a mean is not above 0: before the first upload, or if losses are negative.
    """
    factors = means.mean(dim=1, keepdim=True) / means  # (3, K)
    is_sound = ((means > 0) & factors.isfinite()).all(dim=1, keepdim=True)
    return Measures(*(torch.stack(measures) * torch.where(is_sound, factors, 1.0)))


def means_after(means: Tensor, measures: Measures, epoch: int | Tensor) -> Tensor:
    """Update the running means (3, K) with one upload: roughly the mean of all uploads, later of the last `RECENT`.

    They start as if one upload had been equally far from all clusters.
    """
    latest = torch.stack(measures)  # (3, K)
    mean = (
        latest.cumsum(dim=1)[:, -1:] / latest.shape[1]
    )  # summed in order, so that a recovered server has the same bits
    means = torch.where(means == 0, mean, means)
    rate = 1 / torch.as_tensor(epoch + 1, dtype=torch.float64).clamp(max=RECENT)
    return means + rate * (latest - means)


def estimate_mixture(measures: Measures, settings: EstimateSettings) -> Tensor:
    """Estimate a client's mixture (K,) from three measures (K,) of its upload; a small measure gives a large share.

    >>> near, far = torch.tensor([0.2, 1.0]), torch.tensor([1.0, 1.0])
    >>> estimate_mixture(Measures(near, near, far), EstimateSettings(sharpness=2.0))     # softmax of 2*(.875, .125)
    tensor([0.8176, 0.1824], dtype=torch.float64)

    Deviation: where the printed formula has no value (one cluster; all measures equal under a "min" bar; terms that
    cancel), the measure counts the same for every cluster.
    """
    losses, loss_gaps, distances = measures
    num_clusters = len(losses)
    if num_clusters == 1:
        return torch.ones_like(losses, dtype=torch.float64)
    _warn_of_bars(measures, settings)
    raw = settings.loss_weight * _likeness(losses, settings.loss_bar)
    raw += settings.gap_weight * _likeness(loss_gaps, settings.gap_bar)
    raw += settings.distance_weight * _likeness(distances, settings.distance_bar)
    mixture = raw / (num_clusters - 1)
    for factor in settings.softmax_factors(num_clusters):
        mixture = torch.softmax(mixture * factor, dim=0)
    return mixture


def _likeness(values: Tensor, bar: Bar) -> Tensor:
    """Return sum_{i != k} y_i / sum_i y_i for each cluster k, where y = values - bar."""
    values = values.double()
    above = values - (values.min() if bar == "min" else bar)
    total = above.sum()
    says_nothing = total.abs() <= CANCELLED * above.abs().sum()
    return torch.where(says_nothing, 1 - 1 / len(above), 1 - above / total)


def _warn_of_bars(measures: Measures, settings: EstimateSettings) -> None:
    """Warn of a bar that may reverse the ranking of clusters; not on a GPU, where reading a value is slow."""
    for name, values in zip(("loss_bar", "gap_bar", "distance_bar"), measures, strict=True):
        bar = getattr(settings, name)
        if bar != "min" and not values.is_cuda and bool((values < bar).any()):
            warnings.warn(  # a constant text: Python then shows it once
                f"{name} is {bar:g}, above a measured value: the printed formula may then reverse the ranking of "
                "clusters; use 'min'",
                RuntimeWarning,
                stacklevel=3,
            )
