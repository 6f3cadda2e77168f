"""Pre-train the cluster models that a server starts from, w_k^0."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from cdfl.core.batches import batch_plan
from cdfl.core.client import Loss, client_update
from cdfl.core.flat import flatten
from cdfl.core.settings import Settings


def pretrain(
    model: nn.Module,
    sets: Sequence[tuple[Tensor, Tensor]],
    loss: Loss,
    settings: Settings,
    generator: torch.Generator,
    progress: Callable[[str], Any] = lambda message: None,
    trained: Callable[[int, int], Any] = lambda done, total: None,
) -> Tensor:
    """Train K cluster models (K, P) on K sets of (inputs, targets), from the weights that `model` holds.

    Trains one shared model on all sets for `shared_epochs`, then each cluster from it for `separate_epochs`.
    With `shared_epochs=0`, every cluster starts from the weights of `model`. `progress` is called before each training
    with its name, `trained` after each batch with the samples so far and in all.
    Deviation: the paper does not say how its clusters are pre-trained. Averages of models that were trained apart are
    poor, so ours are trained together first.
    """
    training, passes = settings.training, settings.pretraining
    free = replace(training, proximal_strength=0.0)  # there is no received model to stay close to
    done, total = 0, (passes.shared_epochs + passes.separate_epochs) * sum(len(targets) for _, targets in sets)

    def batches(inputs: Tensor, targets: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal done
        for batch in batch_plan(len(targets), training.batch_size, count, generator).to(targets.device):
            yield inputs[batch], targets[batch]
            done = min(total, done + len(batch))
            trained(done, total)

    def train(start: Tensor, inputs: Tensor, targets: Tensor, count: int) -> Tensor:
        return client_update(model, start, batches(inputs, targets, count), loss, free)

    progress("pre-training, shared model")
    everything = torch.cat([inputs for inputs, _ in sets]), torch.cat([targets for _, targets in sets])
    shared = train(flatten(model), *everything, passes.shared_epochs)
    clusters = []
    for number, (inputs, targets) in enumerate(sets, start=1):
        progress(f"pre-training, cluster {number} of {len(sets)}")
        clusters.append(train(shared, inputs, targets, passes.separate_epochs))
    return torch.stack(clusters)
