"""What does the arithmetic of a simulation: many trainings, or many models looking at data, at once."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cdfl.data import Federation, Samples, to_input

DataSet = tuple[Tensor, Tensor]  # inputs (n, ...) and targets (n,)


@dataclass(frozen=True, eq=False)
class Training:
    """One client's training: where it starts, on which samples, in which batches."""

    federation: Federation
    samples: Samples
    start: Tensor  # (P,) the personal model
    plan: Tensor  # (steps, batch) positions in `samples`
    noise_seed: int  # of what the network itself draws at random (dropout)


class Trainer(Protocol):
    """Trains many clients at once, with the results of training them one by one."""

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """The local models (B, P), in the order of the trainings; a training that diverges harms no other."""
        ...


class Evaluator(Protocol):
    """Shows data to many models at once."""

    def outputs(self, models: Tensor, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """What each model (B, P) says: all of the same inputs (n, ...), or each of its own."""
        ...

    def evaluate(self, models: Tensor, clusters: Tensor, sets: Sequence[DataSet]) -> Tensor:
        """The loss of each model (n, P) on the set of the cluster beside it (n,)."""
        ...


def losses_of(evaluator: Evaluator, models: Tensor, clusters: Tensor, sets: Sequence[DataSet]) -> Tensor:
    """The loss of each model (n, P) on the set of the cluster beside it (n,), from what the models say."""
    chosen = [sets[cluster] for cluster in clusters.tolist()]
    outputs = evaluator.outputs(models, [inputs for inputs, _ in chosen])
    return torch.stack([cross_entropy(said, targets) for said, (_, targets) in zip(outputs, chosen, strict=True)])


@dataclass(frozen=True)
class Engines:
    """Who does the arithmetic of a run. On a CPU small networks train best in a stack and turn best one by one."""

    trainer: Trainer
    pretrainer: Trainer  # without the proximal term
    evaluator: Evaluator
    scores_together: int = 1  # uploads that are scored, and told, in one go at the least


def fetch_all(wanted: Sequence[tuple[Federation, Samples]], dtype: torch.dtype) -> list[DataSet]:
    """Inputs and targets of many draws; those of one federation and split are gathered and scaled in one go."""
    found: list[DataSet] = [None] * len(wanted)  # type: ignore[list-item]
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place, (federation, samples) in enumerate(wanted):
        groups[id(federation), samples.split].append(place)
    for places in groups.values():
        federation, _ = wanted[places[0]]
        parts = [wanted[place][1] for place in places]
        images, targets = federation.fetch(joined(parts))
        sizes = [len(part) for part in parts]
        pairs = zip(to_input(images, dtype).split(sizes), targets.split(sizes), strict=True)
        for place, pair in zip(places, pairs, strict=True):
            found[place] = pair
    return found


def joined(parts: Sequence[Samples]) -> Samples:
    """The samples of several draws from one split, as one."""
    cluster, index = ([getattr(part, name) for part in parts] for name in ("cluster", "index"))
    return Samples(parts[0].split, np.concatenate(cluster), np.concatenate(index))
