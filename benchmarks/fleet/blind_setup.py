"""A problem for `cdfl serve`: the tensors of the paper's CNN (2.3 MB), four clusters, and nothing to evaluate.

A loss is how far one weight is from what a cluster has there, so that mixtures and rates come out as they do elsewhere.
Everything else is as in any server: what is received, checked, synced, mixed and sent.
"""

import torch
from torch import Tensor, nn

from cdfl.core import Settings
from cdfl.data import Dataset, Datasets, Sizes
from cdfl.models import build
from cdfl.problems import Problem

NUM_CLUSTERS = 4


class Blind(nn.Module):
    """Has the paper's CNN, and does not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = build("cnn", input_shape=(1, 28, 28), num_outputs=10)

    def forward(self, inputs: Tensor) -> Tensor:
        """The same for any input."""
        bias: Tensor = list(self.cnn.parameters())[-1]
        return bias[0].expand(len(inputs))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """How far from a cluster's number; never 0."""
    return (outputs - targets).abs().mean() + 0.1


def of_server(cluster: int) -> Dataset:
    """Samples that are all alike."""
    sample = torch.zeros(4), torch.full((4,), cluster / 10)
    return Dataset(f"cluster {cluster}", *sample, *sample, num_classes=None)


torch.manual_seed(0)
problem = Problem(
    model=Blind(),
    loss=loss,
    clusters=Datasets(tuple(of_server(cluster) for cluster in range(NUM_CLUSTERS))),
    sizes=Sizes(low=1, high=1, test=1, pretraining=1, proxy=1),
    settings=Settings(shared_epochs=1, separate_epochs=20, batch_size=1, learning_rate=0.02),
)
