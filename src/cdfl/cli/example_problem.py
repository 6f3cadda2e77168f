"""A problem for `cdfl run`, `cdfl serve` and `cdfl join`: what is to be learned. Change it for your own.

It is described once: first simulate it with clients whose data drift, then serve it to real ones.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import cdfl
from cdfl.data import Seasons
from cdfl.upload_policies import AtFirst, Either, LossRises, MixtureMoves


def clusters() -> dict[str, tuple[Tensor, Tensor]]:
    """Return (inputs, targets) of each cluster: 1,797 digits of 8x8 pixels from scikit-learn, in four rotations.

    A client never calls this unless it simulates its data: it needs only the network, and has data of its own.
    """
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return {f"{90 * turns} degrees": (images.rot90(turns, (2, 3)), torch.tensor(digits)) for turns in range(4)}


torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
)

problem = cdfl.Scenario(
    model=network,  # any torch.nn.Module; pre-training begins with its weights
    loss=cross_entropy,  # any function of (outputs, targets) that returns one number
    metrics=["accuracy"],  # how runs are scored: names, or cdfl.Metric
    clusters=clusters,
    # The images are few and small, so clients and pre-training make many passes over them. Replies carry the models of
    # all clusters, and a router says which to trust on which input; reply="model" sends one model, as in the paper.
    settings=cdfl.Settings(
        reply="experts", batch_size=16, learning_rate=0.003, local_epochs=20, shared_epochs=2, separate_epochs=20
    ),
    # Of each cluster, the server has 300 samples to pre-train with and 200 to recognise uploads by. A simulated client
    # gets 100 fresh ones at each turn.
    sizes=cdfl.Sizes(pretraining=300, proxy=200, low=100, high=100, test=50),
    drift=Seasons(low=1.0, high=1.0, length=10),  # simulated clients see one rotation, and the next one after ten turns
    # Upload at the first turn, then if the loss on fresh data rises by half, or if they come from other clusters.
    policy=AtFirst(Either(LossRises(factor=1.5), MixtureMoves(0.3))),
    num_clients=8,  # simulated
    num_uploads=48,
)
