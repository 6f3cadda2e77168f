"""What the server holds, what a client sends, what it gets back. Frozen: a step makes new ones."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor


class NotFiniteError(ValueError):
    """A model or a loss is NaN or infinite: a training has diverged, and its upload is refused."""


# Losses of n models (n, P), each on the proxy set of the cluster named beside it (n,): the server's only look at data.
Evaluate = Callable[[Tensor, Tensor], Tensor]


def _none() -> Tensor:
    return torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server between two uploads.

    What it remembers of each client (the last mixture, its past harm) is not in here: whoever owns the state keeps that
    in a table of its own and passes one entry with each upload, so no table is copied at every step.
    """

    cluster_models: Tensor  # (K, P)  w_k
    cluster_losses: Tensor  # (K,)    F(w_k; D_k), of the models as they are now; NaN: not looked at since it moved
    cluster_epochs: Tensor  # (K,)    e_k: epoch at which each cluster last moved, int64
    epoch: int = 0  # t: one per upload
    num_parameters: int | None = None  # leading entries of a vector that are trained; None: all of them
    recent_harms: Tensor = field(default_factory=_none)  # of the last uploads, oldest first; where max_harm is set
    usual_measures: Tensor = field(default_factory=_none)  # (3, K) running means over uploads; 0: no upload yet

    def __post_init__(self) -> None:
        """Begin with nothing usual."""
        if self.usual_measures.numel() == 0:
            nothing = torch.zeros(3, self.num_clusters, dtype=torch.float64, device=self.cluster_losses.device)
            object.__setattr__(self, "usual_measures", nothing)

    @property
    def num_clusters(self) -> int:
        """K."""
        return self.cluster_models.shape[0]

    def replace(self, **changes: Any) -> "ServerState":
        """A state with some parts exchanged."""
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Upload:
    """What a client sends: the model it trained, and the epoch of the model it trained from."""

    local_model: Tensor  # (P,)  v_m
    base_epoch: int  # tau
    client_id: str | int = ""
    losses: Tensor | None = None  # (K,) F(v; D_k), where they were computed ahead of time, for many uploads at once
    mixture: Tensor | None = None  # (K,) the client's own estimate; then the server makes none (FedSoft, oracle)
    base_model: Tensor | None = None  # (P,) u: what it was trained from, where the server still has it
    past_harm: float = 1.0  # as the last reply to this client had it


class Measures(NamedTuple):
    """What the server can see of an upload, one number a cluster; float64."""

    losses: Tensor  # (K,)  l_k  = F(v; D_k)
    loss_gaps: Tensor  # (K,)  d1_k = |F(w_k; D_k) - F(v; D_k)|
    distances: Tensor  # (K,)  d2_k = ||v - w_k||


@dataclass(frozen=True, eq=False)
class Reply:
    """What the client gets back, and what the server decided on the way."""

    personal_model: Tensor  # (P,)  u_m
    epoch: int  # t: the base epoch of the client's next upload
    mixture: Tensor  # (K,)  alpha_hat, float64
    rates: Tensor  # (K,)  beta_mk, float64; all zero for a deprecated upload
    staleness: int  # t - tau
    deprecated: bool  # the upload was older than max_staleness and moved nothing
    rejected: bool = False  # the upload did more harm than max_harm allows and moved nothing
    harm: float | None = None  # as max_harm saw it; None: not looked at
    usual_harm: float | None = None  # of the uploads before this one; None: too few to tell, or not looked at
    past_harm: float = 1.0  # what max_harm remembers of this client: below 1 it is trusted, above not
    measures: Measures | None = None  # of the upload, as they were taken; None: it was not measured


def initial_state(cluster_models: Tensor, evaluate: Evaluate, num_parameters: int | None = None) -> ServerState:
    """The server at epoch 0, from pre-trained cluster models (K, P)."""
    if cluster_models.ndim != 2 or 0 in cluster_models.shape:
        raise ValueError(
            f"cluster_models has shape {tuple(cluster_models.shape)}; expected (K, P) with at least one cluster"
        )
    if not is_finite(cluster_models):
        raise ValueError("cluster_models contains NaN or infinity; pre-train again, with a smaller learning_rate")
    clusters = torch.arange(cluster_models.shape[0])
    return ServerState(
        cluster_models=cluster_models,
        cluster_losses=evaluated("the losses of the cluster models", evaluate, cluster_models, clusters),
        cluster_epochs=torch.zeros(len(clusters), dtype=torch.int64),
        num_parameters=num_parameters,
    )


def is_finite(values: Tensor) -> bool:
    """Is every value a finite number? One pass, no memory: NaN and infinity both reach the ends of the range."""
    return values.numel() == 0 or bool(torch.isfinite(torch.stack(values.aminmax())).all())


def evaluated(name: str, evaluate: Evaluate, models: Tensor, clusters: Tensor) -> Tensor:
    """The losses of n models (n, P), each on the proxy set of the cluster beside it (n,): float64, checked."""
    losses = evaluate(models, clusters).double().cpu()
    check_numbers(name, losses, len(clusters))
    return losses


def check_numbers(name: str, values: Tensor, count: int) -> None:
    """Refuse anything but `count` finite numbers."""
    if values.shape != (count,):
        raise ValueError(f"{name} has shape {tuple(values.shape)}; expected one number a cluster, ({count},)")
    if not bool(torch.isfinite(values).all()):
        raise NotFiniteError(
            f"{name}: {values.tolist()}; expected finite numbers: the upload or a cluster model has diverged, "
            "drop it or train with a smaller learning_rate"
        )
