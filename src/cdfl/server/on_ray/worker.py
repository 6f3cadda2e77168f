"""The process that evaluates: it keeps the proxy sets and the network between orders."""

from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch

from cdfl.core import ProxySets
from cdfl.device import torch_threads
from cdfl.on_ray.serialization import Serialized, deserialize

FAILED = np.empty(0)  # in place of losses: the server tries itself, and reports the error


@dataclass(frozen=True, eq=False)
class Order:
    """One model, and the clusters on whose proxy sets it is evaluated."""

    which: int  # of the worker's proxy sets: all samples or those for trials
    model: np.ndarray  # (P,)
    clusters: list[int]


class EvaluationWorker:
    """Evaluates models as the server does, one order at a time."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.done = 0
        self.proxies: list[ProxySets] = []

    def start(self, serialized: Serialized) -> str:
        """Take the proxy sets; return the version of this package."""
        self.proxies = deserialize(serialized)
        return version("cdfl")

    def work(self, order: Order) -> np.ndarray:
        """Return the loss on each cluster of an order, or `FAILED`."""
        model, clusters = torch.tensor(order.model), torch.tensor(order.clusters)
        try:
            with torch_threads(self.cores):
                losses = self.proxies[order.which](model.expand(len(clusters), -1), clusters)
        except Exception:  # of the model or the loss: uploads may cause it, and the worker is still good
            return FAILED
        self.done += 1
        found: np.ndarray = losses.numpy()
        return found

    def steps(self) -> int:
        """Return the number of models so far."""
        return self.done
