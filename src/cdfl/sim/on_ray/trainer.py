"""A trainer whose work is done by the workers of a Ray cluster."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cdfl.on_ray.pool import Pool
from cdfl.sim.engine import Training, no_progress
from cdfl.sim.on_ray.worker import Order

ORDER_BYTES = 2**26  # of the models in one order, at most: so much has to fit in the object store for each worker


class RayTrainer:
    """Splits a stack into orders, one for each worker or more, and puts the models together again.

    A client gets the same model whatever the orders, up to rounding. On CPUs a stack of one client rounds in another
    way than larger stacks, so no order has one training unless the whole stack has. Then also the bits are the same.
    """

    def __init__(self, pool: Pool, *, proximal: bool, in_stacks: bool) -> None:
        self.pool = pool
        self.proximal = proximal
        self.in_stacks = in_stacks  # workers train an order as one stack; else one client after the other
        self.on_step: Callable[[int], Any] = no_progress

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """Train, and return the local models (B, P)."""
        like = trainings[0].start
        result = torch.empty(len(trainings), len(like), dtype=like.dtype)
        parts = self._parts(trainings)

        def order(number: int) -> Order:
            return Order.of([trainings[place] for place in parts[number]], proximal=self.proximal)

        def take(number: int, models: np.ndarray) -> None:
            result.numpy()[parts[number]] = models

        self.pool.work(len(parts), order, take, self.on_step)
        return result.to(like.device)

    def _parts(self, trainings: Sequence[Training]) -> list[list[int]]:
        """Return the places of the trainings of each order; those of one batch size make a stack."""
        by_batch: dict[int, list[int]] = defaultdict(list)
        for place, training in enumerate(trainings):
            by_batch[training.plan.shape[1]].append(place)
        num_bytes = trainings[0].start.nbytes
        return [
            part
            for places in by_batch.values()
            for part in dealt(
                sorted(places, key=lambda place: -len(trainings[place].plan)),
                self.pool.size if self.in_stacks else ceil(len(places) / self.pool.engine.cores),
                ceil(len(places) * num_bytes / ORDER_BYTES),
                least=2 if self.in_stacks else 1,
            )
        ]


def dealt(places: Sequence[int], wanted: int, needed: int, least: int) -> list[list[int]]:
    """Deal places like cards into `wanted` parts or, if more are `needed`, into those; each has `least` at least.

    >>> dealt([5, 6, 7, 8, 9], 2, 1, least=2)
    [[5, 7, 9], [6, 8]]
    >>> dealt([5, 6, 7], 4, 1, least=2)
    [[5, 6, 7]]
    """
    parts = max(1, min(max(wanted, needed), len(places) // least))
    return [list(places[first::parts]) for first in range(parts)]
