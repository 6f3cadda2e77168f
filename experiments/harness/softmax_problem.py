"""A problem that meets the assumptions of Theorem 1: softmax regression with a quadratic term.

Models are flat vectors (P,) of a matrix (features + 1, classes), in float64. Every loss is mean cross entropy plus
`penalty / 2 * ||w||^2`: strongly convex with constant `penalty`, so each cluster has one optimum.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cdfl.data import Federation, Samples


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs with a constant feature (n, features + 1), and labels (n,)."""

    inputs: Tensor
    labels: Tensor


class SoftmaxProblem:
    """The losses of a federation's clusters and clients, their gradients and constants."""

    def __init__(self, federation: Federation, penalty: float) -> None:
        self.federation = federation
        self.penalty = penalty
        self.num_clusters = federation.num_clusters
        self.clusters = [self.take(federation.all_samples("train", k)) for k in range(self.num_clusters)]
        self.proxies = [self.take(federation.all_samples("proxy", k)) for k in range(self.num_clusters)]
        self.size = self.clusters[0].inputs.shape[1] * federation.num_outputs

    def take(self, samples: Samples) -> Sample:
        """Return images as rows in [-1, 1] / sqrt(features), so that no row is longer than about 1."""
        images, labels = self.federation.fetch(samples)
        flat = (images.flatten(1).double() / 127.5 - 1) / images[0].numel() ** 0.5
        return Sample(torch.cat([flat, torch.ones(len(flat), 1, dtype=flat.dtype)], dim=1), labels)

    def loss(self, model: Tensor, sample: Sample) -> Tensor:
        """Return F(w) on a sample."""
        weights = model.view(-1, self.federation.num_outputs)
        return cross_entropy(sample.inputs @ weights, sample.labels) + self.penalty / 2 * model.square().sum()

    def gradients(self, models: Tensor, sample: Sample) -> Tensor:
        """Return the gradients of F at several models (n, P)."""
        weights = models.view(len(models), -1, self.federation.num_outputs)
        errors = torch.softmax(sample.inputs @ weights, dim=2)  # (n, samples, classes)
        errors[:, torch.arange(len(sample.labels)), sample.labels] -= 1
        return (sample.inputs.T @ errors / len(sample.labels)).flatten(1) + self.penalty * models

    def smoothness(self, cluster: int) -> float:
        """Return L_k; the curvature of softmax cross entropy is at most half that of the inputs."""
        inputs = self.clusters[cluster].inputs
        return float(torch.linalg.matrix_norm(inputs.T @ inputs / len(inputs), 2)) / 2 + self.penalty

    def optimum(self, cluster: int) -> Tensor:
        """Return w_k*, found by L-BFGS until the gradient vanishes."""
        model = torch.zeros(self.size, dtype=torch.float64, requires_grad=True)
        solver = torch.optim.LBFGS(
            [model], max_iter=1000, tolerance_grad=1e-9, tolerance_change=0.0, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            solver.zero_grad()
            loss = self.loss(model, self.clusters[cluster])
            loss.backward()
            return loss

        solver.step(closure)
        return model.detach()

    def evaluate(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the proxy set of its cluster (n,), as `server_update` needs it."""
        pairs = zip(models, clusters.tolist(), strict=True)
        return torch.stack([self.loss(model, self.proxies[cluster]) for model, cluster in pairs])
