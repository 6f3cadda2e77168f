"""The interface of an algorithm, and what the algorithms share."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from cdfl.core import (
    GIVEN,
    NEWCOMER,
    ClientMemory,
    Evaluate,
    Reply,
    ServerState,
    Settings,
    Upload,
    join,
    server_update,
)


@dataclass(frozen=True, eq=False)
class ClientView:
    """What a client can compute when its new data arrive."""

    losses: Callable[[Tensor], Tensor]  # models (K, P) -> their losses on each of its samples (n, K)
    true_mixture: Tensor  # (K,) for the oracle only
    experts: Tensor | None = None  # (K, P) the cluster models of its last reply, as they came; None: one model came
    mixture: Callable[[], Tensor] | None = None  # its own estimate (K,), by the router; None: it has no router


@dataclass(frozen=True, eq=False)
class Assignment:
    """What a client trains from at its next upload, and what it sends along."""

    personal_model: Tensor  # (P,)
    base_epoch: int
    client: ClientMemory = NEWCOMER  # what the server remembers of it
    mixture: Tensor | None = None  # the client's own estimate, if the algorithm lets it make one


_Assign = TypeVar("_Assign", bound=Callable[..., Assignment])


def reads_reply_only(assign: _Assign) -> _Assign:
    """Mark an `assign` that does not read the server's state, so that a simulation need not keep it for each client."""
    assign.reads_state = False  # type: ignore[attr-defined]
    return assign


def reads_state(algorithm: "Algorithm") -> bool:
    """Return whether `assign` of an algorithm may read the server's state; one that is overridden may."""
    return getattr(algorithm.assign, "reads_state", True)


@runtime_checkable
class Algorithm(Protocol):
    """A way to learn from uploads.

    `initial`, `join` and `server_update` run on the server, `assign` on the client. State in, state out: an algorithm
    object holds its settings and nothing that changes.
    """

    name: ClassVar[str]
    uses_proxy: bool = True  # the server evaluates uploads and clusters on its proxy sets
    estimates: bool = True  # replies carry an estimate of the client's mixture
    models_down: str = "one"  # what a reply carries: "one" model, all "clusters", "experts" (rounded) or "none"
    settings: Settings

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def network(self, model: nn.Module, num_clusters: int) -> nn.Module:
        """Return the network that clients train, given that of a cluster."""
        return model

    @abstractmethod
    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Return the state at epoch 0, from pre-trained cluster models (K, P)."""
        ...

    @abstractmethod
    def join(self, state: Any) -> Reply:
        """Answer a new client."""
        ...

    @reads_reply_only
    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Return what a client with this reply and these new data trains from."""
        return Assignment(reply.personal_model, reply.epoch, reply.client)

    @abstractmethod
    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Take one upload and answer it."""
        ...

    @abstractmethod
    def cluster_models(self, state: Any) -> Tensor:
        """Return the models that are scored on the clusters: (K, P), or (1, P) if one serves all."""
        ...


class MixtureFromClient(Algorithm):
    """Clients send their mixture; the server moves clusters as CDFL does, but estimates and evaluates nothing."""

    uses_proxy = False

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> ServerState:
        """Begin without evaluating the clusters."""
        return without_losses(cluster_models, num_parameters)

    def join(self, state: Any) -> Reply:
        """Answer a new client with the average of the clusters."""
        return join(state, self.settings)

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Move the clusters by the client's mixture."""
        return server_update(state, upload, self.settings, evaluate, assignment.client, estimator=GIVEN)

    def cluster_models(self, state: Any) -> Tensor:
        """Return the clusters."""
        models: Tensor = state.cluster_models
        return models


def without_losses(cluster_models: Tensor, num_parameters: int) -> ServerState:
    """Return the state of a server that never evaluates its proxy sets."""
    count = len(cluster_models)
    unknown = torch.full((count,), torch.nan, dtype=torch.float64)
    return ServerState(cluster_models, unknown, torch.zeros(count, dtype=torch.int64), num_parameters=num_parameters)
