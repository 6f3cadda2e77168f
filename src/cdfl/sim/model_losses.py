"""The losses of many models on the server's proxy sets, and of cluster models on a client's samples."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cdfl.core.sample_losses import each_loss, row_losses
from cdfl.data import Samples
from cdfl.sim.engine import Evaluator
from cdfl.sim.scenario_instance import ScenarioInstance

NUMBERS = 2**26  # at most this many outputs are in memory at once, where networks have many
# At most this many models at once. Their outputs lie between larger blocks of memory, which cannot be used again before
# all outputs are freed: a million numbers for each model of the small CNN.
MODELS = 256


class ClusterLosses:
    """Evaluates models of the clusters' network."""

    def __init__(self, instance: ScenarioInstance, evaluator: Evaluator) -> None:
        self.instance = instance
        self.evaluator = evaluator

    def evaluate(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the proxy set of its cluster (n,)."""
        return self.evaluator.evaluate(models, clusters, self.instance.proxy_sets)

    def on_proxy_sets(self, models: Tensor) -> Tensor:
        """Return the losses (B, K) of many models (B, P) on all proxy sets, float64 on the CPU."""
        sets, loss = self.instance.proxy_sets, self.instance.loss
        if loss is not cross_entropy or sets[0][1].ndim > 1:
            return torch.stack([self._on(models, *own) for own in sets], dim=1).double().cpu()
        inputs = torch.cat([inputs for inputs, _ in sets])
        targets = torch.cat([own for _, own in sets])
        sizes = [len(targets) for _, targets in sets]
        together = max(1, min(MODELS, NUMBERS // (len(inputs) * self.instance.output_size)))
        found = [self._cross_entropy(some, inputs, targets, sizes) for some in models.split(together)]
        return torch.cat(found).double().cpu()

    def on_samples(self, models: Tensor, samples: Samples) -> Tensor:
        """Return the loss of every model (K, P) on every sample, (n, K)."""
        inputs, targets = self.instance.inputs(samples)
        outputs = self.evaluator.outputs(models, inputs)
        return torch.stack([each_loss(self.instance.loss, out, targets) for out in outputs], dim=1)

    def _cross_entropy(self, models: Tensor, inputs: Tensor, targets: Tensor, sizes: list[int]) -> Tensor:
        logits = torch.stack(self.evaluator.outputs(models, inputs))  # (B, n, classes)
        own = targets.expand(len(logits), -1)  # (B, n)
        losses = cross_entropy(logits.flatten(0, 1), own.flatten(), reduction="none").view_as(own)
        return torch.stack([part.mean(dim=1) for part in losses.split(sizes, dim=1)], dim=1)

    def _on(self, models: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss (B,) of each model (B, P) on common samples."""
        together = max(1, NUMBERS // (len(inputs) * self.instance.output_size))
        found = []
        for some in models.split(together):
            outputs = torch.stack(self.evaluator.outputs(some, inputs))  # (B, n, ...)
            found.append(row_losses(self.instance.loss, outputs, targets.expand(len(some), *targets.shape)))
        return torch.cat(found)
