"""Evaluate models on the proxy sets, the only data that the server sees; one model at a time."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cdfl.core.client import Loss
from cdfl.core.flat import Layout

TOGETHER = 512  # samples: small sets of one model are evaluated in one batch of at most that


@torch.no_grad()
def outputs(model: nn.Module, layout: Layout, vector: Tensor, inputs: Any) -> Any:
    """Return the outputs of a model, given as its vector (P,), in evaluation mode.

    The call writes into `model`, which gives the architecture: two threads need one each.
    """
    model.eval()
    return functional_call(model, layout.views(vector), (inputs,))


class LargestOfFour(nn.Module):
    """`nn.MaxPool2d(2)` without a backward pass: the same outputs in a tenth of the time on a CPU."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the largest value of each 2x2 square; an odd last row or column is left out."""
        height, width = (side // 2 * 2 for side in images.shape[-2:])
        rows = torch.maximum(images[..., 0:height:2, :width], images[..., 1:height:2, :width])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def for_evaluation(model: nn.Module) -> nn.Module:
    """Return a copy of a model that gives the same outputs in evaluation mode, faster."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.MaxPool2d and str(child) == str(nn.MaxPool2d(2)) and not child.return_indices:
                setattr(module, name, LargestOfFour())
    return model


class ProxySets:
    """K sets of (inputs, targets), as an `Evaluate`.

    >>> net, x = nn.Linear(2, 1), torch.ones(4, 2)
    >>> proxies = ProxySets(net, nn.functional.mse_loss, [(x, torch.zeros(4, 1)), (x, torch.ones(4, 1))])
    >>> proxies(torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, 3.0]]), torch.tensor([0, 1]))
    tensor([9., 4.])
    """

    def __init__(self, model: nn.Module, loss: Loss, sets: Sequence[tuple[Any, Any]]) -> None:
        self.model = model
        self.loss = loss
        self.sets = sets
        self.layout = Layout.of(model)

    @torch.no_grad()
    def __call__(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the set of its cluster (n,), computed on the device of `model`."""
        own = clusters.tolist()
        losses: list[Tensor] = []
        for vector, count in repeated(models.to(self._device)):
            losses += self._of_sets(vector, [self.sets[cluster] for cluster in own[len(losses) : len(losses) + count]])
        return torch.stack(losses)

    def _of_sets(self, vector: Tensor, sets: Sequence[tuple[Any, Any]]) -> list[Tensor]:
        """Return the loss of one model (P,) on each of some sets."""
        if _can_be_joined(sets):
            joined = outputs(self.model, self.layout, vector, torch.cat([inputs for inputs, _ in sets]))
            if isinstance(joined, Tensor):
                parts = joined.split([len(inputs) for inputs, _ in sets])
                return [self.loss(part, targets) for part, (_, targets) in zip(parts, sets, strict=True)]
        return [self.loss(outputs(self.model, self.layout, vector, inputs), targets) for inputs, targets in sets]

    def of_each(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the losses of n models (P,) on every set, (n, K): float64 on the CPU, in one copy."""
        clusters = torch.arange(len(self.sets))
        losses = [self(vector.to(self._device).expand(len(clusters), -1), clusters) for vector in vectors]
        return torch.stack(losses).double().cpu()

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def repeated(models: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yield each model of `models` (n, P), and how often it comes in a row."""
    first, count = models[0], 1
    for model in models[1:]:
        if torch.equal(model, first):
            count += 1
        else:
            yield first, count
            first, count = model, 1
    yield first, count


def _can_be_joined(sets: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether the sets are small, and their inputs tensors of one kind."""
    inputs = [own for own, _ in sets]
    return (
        len(sets) > 1
        and all(isinstance(own, Tensor) for own in inputs)
        and len({(own.shape[1:], own.dtype) for own in inputs}) == 1
        and sum(map(len, inputs)) <= TOGETHER
    )
