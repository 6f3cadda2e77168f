"""No server: what a client can reach alone."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment, ClientView
from cdfl.core import Evaluate, Reply, Upload


@dataclass(frozen=True, eq=False)
class Alone:
    """Nothing is learned centrally; there is only the model everybody started from."""

    start: Tensor  # (P,)
    clusters: Tensor  # (K, P)
    epoch: int = 0


class Local(Algorithm):
    """Every client keeps training the model it has, from the same start as in CDFL; nothing is exchanged."""

    name: ClassVar[str] = "local"
    uses_proxy: ClassVar[bool] = False
    estimates: ClassVar[bool] = False
    models_down: ClassVar[str] = "none"

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin with the average of the pre-trained models, as everybody does."""
        return Alone(cluster_models.mean(dim=0), cluster_models)

    def join(self, state: Any) -> Reply:
        """Hand out the common start."""
        return self._reply(state, state.start, state.epoch)

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Keep the model."""
        state = replace(state, epoch=state.epoch + 1)
        return state, self._reply(state, upload.local_model, upload.base_epoch)

    def cluster_models(self, state: Any) -> Tensor:
        """The pre-trained models, which nobody improves."""
        models: Tensor = state.clusters
        return models

    def _reply(self, state: Alone, model: Tensor, base_epoch: int) -> Reply:
        none = torch.zeros(len(state.clusters), dtype=torch.float64)
        return Reply(model, state.epoch, none, none, state.epoch - base_epoch, deprecated=False)


class LocalRestart(Local):
    """Every client trains anew from the common start whenever its data change; nothing is exchanged."""

    name: ClassVar[str] = "local-restart"

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Back to the start."""
        return Assignment(state.start, reply.epoch, reply.mixture)
