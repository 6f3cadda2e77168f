"""FedBuff: one model for everybody, moved once a buffer of changes is full (Nguyen et al., 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment
from cdfl.core import Evaluate, Reply, Settings, Upload, staleness_factor


@dataclass(frozen=True, eq=False)
class BufferedState:
    """The global model, and the sum of the changes that wait to be applied."""

    model: Tensor  # (P,)
    waiting: Tensor  # (P,)
    num_parameters: int  # leading entries of a vector that are trained; statistics follow
    count: int = 0
    epoch: int = 0


class FedBuff(Algorithm):
    """Clients send changes; the server adds their mean, every `buffer_size` uploads.

    The server's step is `base_rate * buffer_size`, at most 1: over a buffer the model then moves about as far as
    FedAsync's would, so that the two can be compared at one setting. Statistics move towards the mean of the uploads
    instead: changes of a variance, made from one that has moved since, may add up to one below 0.
    """

    name: ClassVar[str] = "fedbuff"
    uses_proxy: ClassVar[bool] = False
    estimates: ClassVar[bool] = False
    settled: ClassVar[Mapping[str, Any]] = {"cluster_step": "along"}

    def __init__(self, settings: Settings, buffer_size: int = 10) -> None:
        super().__init__(settings)
        if buffer_size < 1:
            raise ValueError(f"buffer_size is {buffer_size}; expected a whole number, 1 or more")
        self.buffer_size = buffer_size

    @property
    def step(self) -> float:
        """How far the model moves when the buffer is full, as a share of the mean change in it."""
        return min(1.0, self.settings.base_rate * self.buffer_size)

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin with the average of the pre-trained models and an empty buffer."""
        model = cluster_models.mean(dim=0)
        return BufferedState(model, torch.zeros_like(model), num_parameters)

    def join(self, state: Any) -> Reply:
        """Everybody gets the one model."""
        return self._reply(state, state.epoch, moved=False)

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Add a change to the buffer; empty it into the model when it is full."""
        epoch = state.epoch + 1
        limit, staleness = self.settings.max_staleness, epoch - upload.base_epoch
        deprecated = limit is not None and staleness > limit
        if deprecated:
            state = replace(state, epoch=epoch)
            return state, self._reply(state, upload.base_epoch, moved=False, deprecated=True)
        weight = float(staleness_factor(torch.tensor(staleness), self.settings))
        trained = state.num_parameters
        # While its buffer fills the model stays, so statistics, counted from it, end up between it and the uploads.
        base = torch.cat([assignment.personal_model[:trained], state.model[trained:]])
        waiting = state.waiting + weight * (upload.local_model - base)
        model, count = state.model, state.count + 1
        full = count == self.buffer_size
        if full:
            model, waiting, count = model + self.step * waiting / count, torch.zeros_like(waiting), 0
        state = replace(state, model=model, waiting=waiting, count=count, epoch=epoch)
        return state, self._reply(state, upload.base_epoch, moved=full)

    def cluster_models(self, state: Any) -> Tensor:
        """The one model."""
        models: Tensor = state.model[None]
        return models

    def _reply(self, state: BufferedState, base_epoch: int, *, moved: bool, deprecated: bool = False) -> Reply:
        rates = torch.full((1,), self.step if moved else 0.0, dtype=torch.float64)
        whole = torch.ones(1, dtype=torch.float64)
        return Reply(state.model, state.epoch, whole, rates, state.epoch - base_epoch, deprecated)
