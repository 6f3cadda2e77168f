"""Interfaces of the compute engines: train many clients, or evaluate many models, at once."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cdfl.core import Loss
from cdfl.data import Federation, Samples

DataSet = tuple[Tensor, Tensor]  # inputs (n, ...) and targets (n, ...)


@dataclass(frozen=True, eq=False)
class Training:
    """One client's training: where it starts, on which samples, in which batches."""

    federation: Federation
    samples: Samples
    start: Tensor  # (P,) the personal model
    plan: Tensor  # (steps, batch) positions in `samples`
    noise_seed: int  # of the random numbers that the network draws (dropout)


def no_progress(steps: int) -> None:
    """Ignore progress."""


class Trainer(Protocol):
    """Trains many clients at once; the results equal those of training them one by one."""

    on_step: Callable[[int], Any]  # called while it trains, with the steps of single clients since the last call

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """Return the local models (B, P) in the order of the trainings. A diverging training does not affect others."""
        ...


class Evaluator(Protocol):
    """Evaluates many models at once."""

    def outputs(self, models: Tensor, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of each model (B, P), on common inputs (n, ...) or each on its own."""
        ...

    def evaluate(self, models: Tensor, clusters: Tensor, sets: Sequence[DataSet]) -> Tensor:
        """Return the loss of each model (n, P) on the data set of its cluster (n,)."""
        ...


def losses_of(evaluator: Evaluator, loss: Loss, models: Tensor, clusters: Tensor, sets: Sequence[DataSet]) -> Tensor:
    """Return the loss of each model (n, P) on the data set of its cluster (n,), from the evaluator's outputs."""
    chosen = [sets[cluster] for cluster in clusters.tolist()]
    outputs = evaluator.outputs(models, [inputs for inputs, _ in chosen])
    return torch.stack([loss(output, targets) for output, (_, targets) in zip(outputs, chosen, strict=True)])


@dataclass(frozen=True)
class Engines:
    """The engines of a run. On a CPU, small networks train fastest in a stack and evaluate fastest one by one."""

    trainer: Trainer
    pretrainer: Trainer  # without the proximal term
    evaluator: Evaluator
    scores_together: int = 1  # uploads to collect before they are scored


def fetch_all(wanted: Sequence[tuple[Federation, Samples]], dtype: torch.dtype) -> list[DataSet]:
    """Return inputs and targets of many draws; those of one federation and split are gathered together."""
    found: list[DataSet] = [None] * len(wanted)  # type: ignore[list-item]
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place, (federation, samples) in enumerate(wanted):
        groups[id(federation), samples.split].append(place)
    for places in groups.values():
        federation, _ = wanted[places[0]]
        parts = [wanted[place][1] for place in places]
        inputs, targets = federation.ready(joined(parts), dtype)
        sizes = [len(part) for part in parts]
        pairs = zip(inputs.split(sizes), targets.split(sizes), strict=True)
        for place, pair in zip(places, pairs, strict=True):
            found[place] = pair
    return found


def joined(parts: Sequence[Samples]) -> Samples:
    """Join the samples of several draws from one split."""
    cluster, index = ([getattr(part, name) for part in parts] for name in ("cluster", "index"))
    return Samples(parts[0].split, np.concatenate(cluster), np.concatenate(index))
