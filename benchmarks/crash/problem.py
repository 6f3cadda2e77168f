"""A problem for `cdfl serve` whose updates take milliseconds: digits in three rotations, 38 kB a model."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from cdfl.core import Settings
from cdfl.data import Dataset, Datasets, Sizes
from cdfl.problems import Problem

NUM_CLUSTERS = 3
CLIENT_DATA = 32  # images that a client trains on before each upload

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
IMAGES = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 8, 8)
LABELS = torch.tensor(digits)


def turned(cluster: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Some of the digits, in one rotation."""
    return IMAGES[chosen].rot90(cluster, dims=(1, 2)), LABELS[chosen]


def fresh(cluster: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """What a client saw since its last upload."""
    return turned(cluster, torch.randint(300, len(LABELS), (CLIENT_DATA,), generator=random))


def of_server(cluster: int) -> Dataset:
    """What the server has of a cluster: images to pre-train with, and others to recognise uploads by."""
    train, proxy = turned(cluster, torch.arange(60, 160)), turned(cluster, torch.arange(60))
    return Dataset(f"rotation {cluster}", *train, *proxy, num_classes=10)


problem = Problem(
    model=nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
    clusters=Datasets(tuple(of_server(cluster) for cluster in range(NUM_CLUSTERS))),
    sizes=Sizes(pretraining=100, proxy=60),
    settings=Settings(
        measures="relative",  # then more is to be recovered
        max_staleness=12,
        batch_size=16,
        learning_rate=0.003,
        local_epochs=1,
        shared_epochs=1,
        separate_epochs=3,
    ),
)
