"""How the clusters compare: the loss of each on every proxy set, and the distances between them."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cdfl.core import ServerState

SECONDS = 5.0  # between two computations, however many watchers ask


class Evaluator(Protocol):
    """Evaluates models on the proxy sets, as `core.ProxySets` does."""

    def of_each(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the losses of n models (P,) on every set (n, K)."""
        ...


class Comparison(NamedTuple):
    """The clusters at one epoch."""

    epoch: int
    losses: list[list[float]]  # [k][j]: of cluster k's model on the proxy set of cluster j
    distances: list[list[float]]  # [k][j]: norm of the difference of two models, over what is trained


class Matrices:
    """Compares the clusters at most every few seconds. May be called from any thread; one computes at a time."""

    def __init__(self, evaluator: Evaluator, clock: Callable[[], float] = time.monotonic) -> None:
        self._evaluator, self._clock = evaluator, clock
        self._turn = threading.Lock()
        self._last: Comparison | None = None
        self._time = 0.0

    def of(self, state: ServerState) -> Comparison:
        """Return how the clusters compare, as of a few seconds ago at most."""
        with self._turn:
            is_old = self._last is None or self._clock() - self._time > SECONDS
            if self._last is None or (is_old and self._last.epoch != state.epoch):
                self._last = compared(state, self._evaluator)
                self._time = self._clock()
            return self._last


def compared(state: ServerState, evaluator: Evaluator) -> Comparison:
    """Compare the clusters of a state."""
    trained = state.cluster_models[:, : state.num_parameters]
    losses = evaluator.of_each(list(state.cluster_models))
    return Comparison(state.epoch, losses.double().tolist(), torch.cdist(trained, trained).double().tolist())
