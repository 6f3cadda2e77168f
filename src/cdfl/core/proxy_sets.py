"""Evaluate models on the proxy sets, the only data that the server sees; one model and one set at a time."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cdfl.core.client import Loss
from cdfl.core.flat import Layout


@torch.no_grad()
def outputs(model: nn.Module, layout: Layout, vector: Tensor, inputs: Any) -> Any:
    """Return the outputs of a model, given as its vector (P,), in evaluation mode.

    The call writes into `model`, which gives the architecture: two threads need one each.
    """
    model.eval()
    return functional_call(model, layout.views(vector), (inputs,))


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
        losses = []
        for vector, cluster in zip(models.to(self._device), clusters.tolist(), strict=True):
            inputs, targets = self.sets[cluster]
            losses.append(self.loss(outputs(self.model, self.layout, vector, inputs), targets))
        return torch.stack(losses)

    def of_each(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the losses of n models (P,) on every set, (n, K): float64 on the CPU, in one copy."""
        clusters = torch.arange(len(self.sets))
        losses = [self(vector.to(self._device).expand(len(clusters), -1), clusters) for vector in vectors]
        return torch.stack(losses).double().cpu()

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device
