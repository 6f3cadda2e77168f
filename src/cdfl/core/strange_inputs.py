"""Which inputs fit no cluster? Not in the paper.

A router divides all inputs among the clusters, even inputs that are like none of them. So the server describes the
samples it knows by a few projections, with a mean for each cluster and one covariance. An input is strange if it is
farther from all means than nearly all known samples (the Mahalanobis distance of Lee et al. 2018), or nearer: a black
picture is close to the mean of all pictures.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

PROJECTIONS = 64  # at most; a tenth of the samples if that is less
FALSE_ALARMS = 0.005  # share of known samples that count as strange


class Known(NamedTuple):
    """A description of known samples."""

    means: Tensor  # (K, D) float64, of the projections of each cluster's samples
    whitening: Tensor  # (D, D) makes their covariance within clusters the identity
    nearest: float  # the least and the greatest distance of a familiar sample
    farthest: float

    def is_strange(self, values: Tensor) -> Tensor:
        """Return which of some samples (N, ...) fit no cluster (N,)."""
        distances = self._distances(project(values, self.means.shape[1]))
        return ~((distances >= self.nearest) & (distances <= self.farthest))  # NaN is strange

    def _distances(self, points: Tensor) -> Tensor:
        centred = points[:, None] - self.means.to(points.device)  # (N, K, D)
        return (centred @ self.whitening.to(points.device)).square().sum(dim=-1).amin(dim=1).sqrt()


def describe(values: Tensor, clusters: Tensor, generator: torch.Generator) -> Known:
    """Describe samples (N, ...) of known clusters (N,). Half of them set the limits of what is familiar."""
    num_clusters, count = int(clusters.max()) + 1, len(clusters)
    points = project(values, max(1, min(PROJECTIONS, count // 20)))
    is_first = torch.zeros(count, dtype=torch.bool)
    is_first[torch.randperm(count, generator=generator)[: count // 2]] = True
    means = torch.stack(
        [points[(clusters == cluster).to(points.device)].mean(dim=0) for cluster in range(num_clusters)]
    )
    within = (points - means[clusters.to(points.device)])[is_first.to(points.device)]
    covariance = within.T @ within / max(1, len(within))
    scale = covariance.diagonal().mean().clamp_min(1e-12)
    values_, vectors = torch.linalg.eigh((covariance + 1e-4 * scale * torch.eye(len(covariance)).to(covariance)).cpu())
    whitening = vectors * values_.rsqrt()
    known = Known(means.cpu(), whitening, 0.0, float("inf"))
    distances = known._distances(points[~is_first.to(points.device)]).cpu()
    low, high = distances.quantile(torch.tensor([FALSE_ALARMS / 2, 1 - FALSE_ALARMS / 2]).double()).tolist()
    return known._replace(nearest=low, farthest=high)


def project(values: Tensor, num_projections: int) -> Tensor:
    """Return the same few random projections of all samples (N, D): everybody who computes them gets the same."""
    flat = values.flatten(1).float()
    points: Tensor = (flat @ _directions(flat.shape[1], num_projections).to(flat)).double()
    return points


@lru_cache(maxsize=8)
def _directions(size: int, num_projections: int) -> Tensor:
    seeded = torch.Generator().manual_seed(size)
    return torch.randn(size, num_projections, generator=seeded).div_(size**0.5)
