"""Train without a server: clients exchange nothing."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment, ClientView
from cdfl.core import Evaluate, Reply, Upload


@dataclass(frozen=True, eq=False)
class Alone:
    """The models that all clients start from; nothing is learned centrally."""

    start: Tensor  # (P,)
    clusters: Tensor  # (K, P)
    epoch: int = 0


class LocalKeep(Algorithm):
    """Every client keeps training its own model, from the same start as in CDFL."""

    name: ClassVar[str] = "local-keep"
    uses_proxy = False
    estimates = False
    models_down = "none"

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Alone:
        """Begin with the average of the pre-trained models, as the other algorithms do."""
        return Alone(cluster_models.mean(dim=0), cluster_models)

    def join(self, state: Any) -> Reply:
        """Send the common start."""
        return self._reply(state, state.start, state.epoch)

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Send the client its own model back."""
        state = replace(state, epoch=state.epoch + 1)
        return state, self._reply(state, upload.local_model, upload.base_epoch)

    def cluster_models(self, state: Any) -> Tensor:
        """Return the pre-trained models, which do not improve."""
        models: Tensor = state.clusters
        return models

    def _reply(self, state: Alone, model: Tensor, base_epoch: int) -> Reply:
        none = torch.zeros(len(state.clusters), dtype=torch.float64)
        return Reply(model, state.epoch, none, none, state.epoch - base_epoch)


class Frozen(LocalKeep):
    """Nobody learns: clients are served the common start. With a router, the pre-trained models behind it."""

    name: ClassVar[str] = "frozen"

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Send the common start again."""
        state = replace(state, epoch=state.epoch + 1)
        return state, self._reply(state, state.start, upload.base_epoch)


class Local(LocalKeep):
    """The paper's Local: every client trains from the common start whenever its data change."""

    name: ClassVar[str] = "local"

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Assign the common start."""
        return Assignment(state.start, reply.epoch, reply.client)
