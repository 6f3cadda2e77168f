"""The records of the core: what the server holds, what a client sends, what it gets back. All are frozen."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

# applied: the upload counted, and moved each cluster by its rate, which may be 0; also the outcome of `join`, which has
# no upload. deprecated: the upload is older than max_staleness. rejected: the defence refused it. Both move no cluster;
# a rejected upload does not count as an epoch either.
Outcome = Literal["applied", "deprecated", "rejected"]

# Returns the losses of n models (n, P), each on the proxy set of its cluster (n,). The core sees no other data.
Evaluate = Callable[[Tensor, Tensor], Tensor]


class NotFiniteError(ValueError):
    """A model or a loss is NaN or infinite: training has diverged, and the upload is refused."""


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server between two uploads.

    The memory of single clients is not part of it: the owner of the state keeps one `ClientMemory` for each client and
    passes it with the upload, so no table is copied at every step.
    """

    cluster_models: Tensor  # (K, P)  w_k
    cluster_losses: Tensor  # (K,)    F(w_k; D_k); NaN if not evaluated since the cluster moved
    cluster_epochs: Tensor  # (K,)    e_k: epoch at which each cluster last moved, int64
    epoch: int = 0  # t: counts uploads, except rejected ones
    num_parameters: int | None = None  # leading entries of a vector that are trained; all of them if None
    estimator_memory: Tensor = field(default_factory=_nothing)
    defence_memory: Tensor = field(default_factory=_nothing)

    @property
    def num_clusters(self) -> int:
        """K."""
        return self.cluster_models.shape[0]

    def replace(self, **changes: Any) -> "ServerState":
        """Return this state with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Upload:
    """What a client sends: the model it trained, and the epoch of the model it trained from."""

    local_model: Tensor  # (P,)  v_m
    base_epoch: int  # tau
    client_id: str | int = ""
    losses: Tensor | None = None  # (K,) F(v; D_k), if they are known already
    mixture: Tensor | None = None  # (K,) the client's own estimate, for the estimator GIVEN
    base_model: Tensor | None = None  # (P,) u: what it was trained from, if the server still has it
    time: float = 0.0  # seconds; when it came
    bounds: tuple[float, float] = (1.0, 1.0)  # factors by which a defence shortened the changes: parameters, statistics

    def replace(self, **changes: Any) -> "Upload":
        """Return this upload with some fields changed."""
        return replace(self, **changes)


class Measures(NamedTuple):
    """What the server measures of an upload, one number for each cluster; float64."""

    losses: Tensor  # (K,)  l_k  = F(v; D_k)
    loss_gaps: Tensor  # (K,)  d1_k = |F(w_k; D_k) - F(v; D_k)|
    distances: Tensor  # (K,)  d2_k = ||v - w_k||


UNMEASURED = Measures(*[torch.empty(0, dtype=torch.float64)] * 3)  # of an upload that was not evaluated


class Verdict(NamedTuple):
    """A defence's decision about an upload. Plain values: the journal stores them."""

    is_accepted: bool = True
    seen: tuple[float | None, ...] = ()  # its measurements, from which `Defence.remember` updates the server's memory
    client: tuple[float, ...] = ()  # its memory of this client after the upload
    reason: str = ""  # why the upload was rejected, for its client
    bounds: tuple[float, ...] = (1.0, 1.0)  # `Upload.bounds`, so that a replay on another machine gets the same bits


ACCEPTED = Verdict()


class ClientMemory(NamedTuple):
    """What the server remembers of one client between its uploads."""

    mixture: Tensor | None = None  # (K,) of the last reply; None for a new client
    defence: tuple[float, ...] = ()  # `Verdict.client` of the last reply


@dataclass(frozen=True, eq=False)
class Reply:
    """What the client gets back, and what the server decided."""

    personal_model: Tensor  # (P,)  u_m
    epoch: int  # t: the base epoch of the client's next upload; if rejected, that of this one
    mixture: Tensor  # (K,)  alpha_hat, float64
    rates: Tensor  # (K,)  beta_mk, float64; all zero unless applied
    staleness: int  # t - tau
    outcome: Outcome = "applied"
    measures: Measures = UNMEASURED  # of the upload
    verdict: Verdict = ACCEPTED

    def replace(self, **changes: Any) -> "Reply":
        """Return this reply with some fields changed."""
        return replace(self, **changes)

    @property
    def client(self) -> ClientMemory:
        """What the server remembers of this client until its next upload."""
        return ClientMemory(self.mixture, self.verdict.client)


def initial_state(cluster_models: Tensor, evaluate: Evaluate, num_parameters: int | None = None) -> ServerState:
    """Return the server at epoch 0, from pre-trained cluster models (K, P)."""
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
    """Return whether every value is finite, in one pass: NaN and infinity both show in the minimum and maximum."""
    return values.numel() == 0 or bool(torch.isfinite(torch.stack(values.aminmax())).all())


def evaluated(name: str, evaluate: Evaluate, models: Tensor, clusters: Tensor) -> Tensor:
    """Return the losses of n models (n, P) on the proxy sets of n clusters (n,): float64, checked."""
    losses = evaluate(models, clusters).double().cpu()
    check_numbers(name, losses, len(clusters))
    return losses


def check_numbers(name: str, values: Tensor, count: int) -> None:
    """Raise unless `values` are `count` finite numbers."""
    if values.shape != (count,):
        raise ValueError(f"{name} has shape {tuple(values.shape)}; expected one number for each cluster, ({count},)")
    if not bool(torch.isfinite(values).all()):
        raise NotFiniteError(
            f"{name}: {values.tolist()}; expected finite numbers: the upload or a cluster model has diverged, "
            "drop it or train with a smaller learning_rate"
        )
