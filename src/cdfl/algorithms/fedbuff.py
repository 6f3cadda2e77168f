"""FedBuff: one model for all, moved when a buffer of changes is full (Nguyen et al., 2022)."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment
from cdfl.core import Evaluate, Outcome, Reply, Settings, Upload, is_too_stale


@dataclass(frozen=True, eq=False)
class BufferedState:
    """The global model, and the sum of the buffered changes."""

    model: Tensor  # (P,)
    waiting: Tensor  # (P,)
    num_parameters: int  # leading entries of a vector that are trained; statistics follow
    count: int = 0
    epoch: int = 0


class FedBuff(Algorithm):
    """Clients send changes; after `buffer_size` uploads the server adds their mean.

    The server's step is `base_rate * buffer_size`, so over one buffer the model moves about as far as FedAsync's at the
    same setting. Statistics move towards the mean of the uploads: the sum of several changes could
    make a variance negative.
    """

    name: ClassVar[str] = "fedbuff"
    uses_proxy = False
    estimates = False

    def __init__(self, settings: Settings, buffer_size: int = 10) -> None:
        self.settings = settings
        if buffer_size < 1:
            raise ValueError(f"buffer_size is {buffer_size}; expected a whole number, 1 or more")
        self.buffer_size = buffer_size

    @property
    def step(self) -> float:
        """How far the model moves when the buffer is full, as a share of the mean change."""
        return self.settings.rates.base_rate * self.buffer_size

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin with the average of the pre-trained models and an empty buffer."""
        model = cluster_models.mean(dim=0)
        return BufferedState(model, torch.zeros_like(model), num_parameters)

    def join(self, state: Any) -> Reply:
        """Send the one model."""
        return self._reply(state, state.epoch, moved=False)

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Add a change to the buffer; empty it into the model when it is full."""
        epoch = state.epoch + 1
        staleness = epoch - upload.base_epoch
        if is_too_stale(staleness, self.settings.rates):
            state = replace(state, epoch=epoch)
            return state, self._reply(state, upload.base_epoch, moved=False, outcome="deprecated")
        # Its authors' rule; staleness counts the versions of the model, and a version takes a buffer of uploads.
        versions = state.epoch // self.buffer_size - upload.base_epoch // self.buffer_size
        weight = 1 / math.sqrt(1 + versions)
        trained = state.num_parameters
        # The model does not move while the buffer fills, so statistics stay between the model's and the uploads'.
        base = torch.cat([assignment.personal_model[:trained], state.model[trained:]])
        waiting = state.waiting + weight * (upload.local_model - base)
        model, count = state.model, state.count + 1
        full = count == self.buffer_size
        if full:
            mean = waiting / count
            moved = model[:trained] + self.step * mean[:trained], model[trained:] + min(1.0, self.step) * mean[trained:]
            model, waiting, count = torch.cat(moved), torch.zeros_like(waiting), 0
        state = replace(state, model=model, waiting=waiting, count=count, epoch=epoch)
        return state, self._reply(state, upload.base_epoch, moved=full)

    def cluster_models(self, state: Any) -> Tensor:
        """Return the one model."""
        models: Tensor = state.model[None]
        return models

    def _reply(self, state: BufferedState, base_epoch: int, *, moved: bool, outcome: Outcome = "applied") -> Reply:
        rates = torch.full((1,), self.step if moved else 0.0, dtype=torch.float64)
        whole = torch.ones(1, dtype=torch.float64)
        return Reply(state.model, state.epoch, whole, rates, state.epoch - base_epoch, outcome)
