"""The losses that a decision asked for, in order: recorded when it is made, repeated when it is verified."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from cdfl.core import Evaluate
from cdfl.device import torch_threads
from cdfl.server.store_errors import StoreDamaged
from cdfl.server.store_records import Numbers, numbers, tensor


class Recording:
    """Records losses. A model whose loss raises has the loss NaN; if all raise, the evaluation itself is broken."""

    def __init__(self, cores: int | None = None) -> None:
        self.seconds = 0.0
        self._cores = cores
        self._losses: list[Tensor] = []

    @property
    def numbers(self) -> Numbers:
        """Everything that was recorded, for the journal."""
        return numbers(torch.cat(self._losses)) if self._losses else ()

    def of(self, evaluate: Evaluate) -> Evaluate:
        """Return `evaluate`, recorded and with all cores."""

        def recorded(models: Tensor, clusters: Tensor) -> Tensor:
            begun = time.perf_counter()
            with torch_threads(self._cores or torch.get_num_threads()):
                losses = _evaluated(evaluate, models, clusters)
            self.seconds += time.perf_counter() - begun
            self._losses.append(losses)
            return losses

        return recorded


class Playback:
    """An `Evaluate` that repeats recorded losses."""

    def __init__(self, recorded: Sequence[float | None]) -> None:
        self._left = list(recorded)

    def __call__(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the next losses."""
        count = len(clusters)
        if count > len(self._left):
            raise StoreDamaged("fewer losses are recorded than the decision needs")
        taken, self._left = self._left[:count], self._left[count:]
        return tensor(taken)


def _evaluated(evaluate: Evaluate, models: Tensor, clusters: Tensor) -> Tensor:
    try:
        return evaluate(models, clusters).double().cpu()
    except Exception:
        if len(clusters) == 1:
            return torch.tensor([torch.nan], dtype=torch.float64)
        each = [
            _evaluated(evaluate, model[None], cluster[None]) for model, cluster in zip(models, clusters, strict=True)
        ]
        losses = torch.cat(each)
        if bool(losses.isnan().all()):
            raise
        return losses
