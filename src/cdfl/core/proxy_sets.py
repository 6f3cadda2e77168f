"""Evaluate models on the proxy sets, the only data that the server sees; one model at a time."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cdfl.core.client import Loss
from cdfl.core.flat import Layout, tensors_of

TOGETHER = 2**16  # small sets are evaluated in one batch: inputs of at most that many numbers
PIECE, FEWEST = 2**17, 32  # large ones in pieces of about so many numbers, and at least so many samples


@torch.no_grad()
def outputs(model: nn.Module, layout: Layout, vector: Tensor, inputs: Any) -> Any:
    """Return the outputs of a model, given as its vector (P,), in evaluation mode.

    The call writes into `model`, which gives the architecture: two threads need one each.
    """
    model.eval()
    return functional_call(model, layout.views(vector), (inputs,))


def in_pieces(model: Callable[[Any], Any], inputs: Any) -> Any:
    """Return model(inputs), computed in pieces on a CPU if the inputs are many.

    That is faster, because what a layer computes stays in the processor's cache, and needs less memory.
    """
    if not isinstance(inputs, Tensor) or inputs.is_cuda or inputs.numel() <= PIECE:
        return model(inputs)
    first, *others = inputs.split(max(FEWEST, PIECE * len(inputs) // inputs.numel()))
    found = model(first)
    if not isinstance(found, Tensor) or found.shape[:1] != first.shape[:1]:  # not one output a sample
        return model(inputs)
    return torch.cat([found, *map(model, others)])


class LargestOfFour(nn.Module):
    """`nn.MaxPool2d(2)` without a backward pass: the same outputs in a tenth of the time on a CPU."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the largest value of each 2x2 square; an odd last row or column is left out."""
        height, width = (side // 2 * 2 for side in images.shape[-2:])
        rows = torch.maximum(images[..., 0:height:2, :width], images[..., 1:height:2, :width])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def for_evaluation(model: nn.Module) -> nn.Module:
    """Return a copy of a model that gives the same outputs in evaluation mode, faster.

    In an `nn.Sequential`, ReLU comes after the pooling that follows it: the same numbers from a quarter of the values.
    """
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        earlier, before = "", nn.Module()
        for name, child in list(module.named_children()):
            if type(child) is nn.MaxPool2d and str(child) == str(nn.MaxPool2d(2)) and not child.return_indices:
                setattr(module, name, LargestOfFour())
                if type(module) is nn.Sequential and type(before) is nn.ReLU:
                    setattr(module, earlier, LargestOfFour())
                    setattr(module, name, before)
            earlier, before = name, child
    return model


class ProxySets:
    """K sets of (inputs, targets), as an `Evaluate`; for one thread.

    >>> net, x = nn.Linear(2, 1), torch.ones(4, 2)
    >>> proxies = ProxySets(net, nn.functional.mse_loss, [(x, torch.zeros(4, 1)), (x, torch.ones(4, 1))])
    >>> proxies(torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, 3.0]]), torch.tensor([0, 1]))
    tensor([9., 4.])
    """

    def __init__(self, model: nn.Module, loss: Loss, sets: Sequence[tuple[Any, Any]]) -> None:
        self.model = for_evaluation(model).eval()
        self.loss = loss
        self.sets = sets
        self.layout = Layout.of(model)
        self._tensors = list(tensors_of(self.model).values())

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
        for tensor, value in zip(self._tensors, self.layout.views(vector).values(), strict=True):
            tensor.data = value  # faster than `functional_call`
        if _can_be_joined(sets):
            joined = self.model(torch.cat([inputs for inputs, _ in sets]))
            if isinstance(joined, Tensor):
                parts = joined.split([len(inputs) for inputs, _ in sets])
                return [self.loss(part, targets) for part, (_, targets) in zip(parts, sets, strict=True)]
        return [self.loss(in_pieces(self.model, inputs), targets) for inputs, targets in sets]

    @torch.no_grad()
    def of_each(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the losses of n models (P,) on every set, (n, K): float64 on the CPU, in one copy."""
        losses = [torch.stack(self._of_sets(vector.to(self._device), self.sets)) for vector in vectors]
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
        and sum(own.numel() for own in inputs) <= TOGETHER
    )
