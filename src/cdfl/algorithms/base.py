"""What a simulator asks of an algorithm, and what CDFL answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from cdfl.core import (
    Estimator,
    Evaluate,
    Reply,
    ServerState,
    Settings,
    Upload,
    estimate_mixture,
    initial_state,
    join,
    server_update,
)


@dataclass(frozen=True, eq=False)
class ClientView:
    """What a client can see when its new data arrive: that data, through the eyes of models it was sent."""

    losses: Callable[[Tensor], Tensor]  # models (K, P) -> losses of every one of its samples (n, K)
    true_mixture: Tensor  # (K,) nobody but the oracle may look at this


@dataclass(frozen=True, eq=False)
class Assignment:
    """What a client will train from, and send along, at its next upload."""

    personal_model: Tensor  # (P,)
    base_epoch: int
    last_mixture: Tensor | None = None  # of the reply it comes from
    mixture: Tensor | None = None  # the client's own estimate, where an algorithm lets it make one
    past_harm: float = 1.0  # of the reply it comes from


class Algorithm:
    """A way to learn from uploads. This one is CDFL; the others override the steps in which they differ.

    `initial`, `join` and `server_update` run on the server, `assign` on the client. State in, state out: an
    algorithm object holds its settings and nothing that changes.
    """

    name: ClassVar[str] = "cdfl"
    uses_proxy: ClassVar[bool] = True  # the server evaluates uploads and clusters on its proxy sets
    estimates: ClassVar[bool] = True  # replies carry an estimate of the client's mixture
    models_down: ClassVar[str] = "one"  # how many models a reply carries: "one", "clusters" or "none"
    settled: ClassVar[Mapping[str, Any]] = {}  # settings that are part of what it is, whatever is asked for

    def __init__(self, settings: Settings, estimate: Estimator = estimate_mixture) -> None:
        self.settings = settings.replace(**self.settled)
        self.estimate = estimate

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin at epoch 0, from pre-trained cluster models (K, P)."""
        return initial_state(cluster_models, evaluate, num_parameters)

    def join(self, state: Any) -> Reply:
        """Welcome a newcomer."""
        return join(state, self.settings)

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Receive a reply and new data: what will this client train from?"""
        return Assignment(reply.personal_model, reply.epoch, reply.mixture, past_harm=reply.past_harm)

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Take one upload and answer it."""
        upload = replace(upload, past_harm=assignment.past_harm)
        return server_update(state, upload, self.settings, evaluate, assignment.last_mixture, self.estimate)

    def cluster_models(self, state: Any) -> Tensor:
        """The models to be scored on the clusters: (K, P), or (1, P) where one serves all."""
        models: Tensor = state.cluster_models
        return models


def proxy_free_state(models: Tensor, num_parameters: int) -> ServerState:
    """A server that never looks at its proxy sets."""
    count = len(models)
    zeros = torch.zeros(count, dtype=torch.float64)
    return ServerState(models, zeros, torch.zeros(count, dtype=torch.int64), num_parameters=num_parameters)
