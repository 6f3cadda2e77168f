"""A set-up for `cdfl serve`: what is learned, and what the server may look at. Change it to your own problem.

The server needs `model`, `loss` and `proxy_sets`, and may have `pretraining_sets` and `settings`. A client of yours
(`cdfl.Client`) needs the same `model`; what is at the end is for trying it out with `cdfl join --setup FILE --watch`.
"""

import zlib
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cdfl.core import Settings
from cdfl.policy import AtFirst, LossRises

# -- the data: 1,797 handwritten digits of 8x8 pixels that come with scikit-learn, in four rotations

torch.manual_seed(0)
NUM_CLUSTERS = 4
pixels, digits = load_digits(return_X_y=True)
shuffled = torch.randperm(len(digits))
IMAGES = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)[shuffled]
LABELS = torch.tensor(digits)[shuffled]


def turned(cluster: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Some of the digits, turned by 0, 90, 180 or 270 degrees."""
    images = IMAGES[chosen].rot90(cluster, dims=(2, 3))
    return images.to(memory_format=torch.channels_last), LABELS[chosen]  # so a CPU evaluates twice as fast


# -- what the server needs

# Any torch.nn.Module. The weights it has here are those pre-training begins with.
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
)

# Any function of (outputs, targets) that gives one number.
loss = cross_entropy

# For every cluster some data, (inputs, targets), on which uploads are judged: they say which clusters a client is like.
proxy_sets = [turned(cluster, torch.arange(200)) for cluster in range(NUM_CLUSTERS)]

# For every cluster some data to begin with. Without them all clusters begin as `model`, trained elsewhere.
pretraining_sets = [turned(cluster, torch.arange(200, 500)) for cluster in range(NUM_CLUSTERS)]

# Everything that can be set is in cdfl.core.Settings; `cdfl join` takes from here how clients train. The images are
# few and small: many passes over them, and clusters that are trained apart for long, to be worth telling apart.
settings = Settings(batch_size=16, learning_rate=0.003, local_epochs=20, shared_epochs=2, separate_epochs=20)


# -- what `cdfl join --watch` needs

# When a client uploads: at its first look, then whenever the loss on fresh data is half as high again as it was.
policy = AtFirst(LossRises(factor=1.5))


def stream(client_id: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Fresh data of a client, again and again: digits of one rotation and, every ten looks, of the next one. Drift."""
    random = torch.Generator().manual_seed(zlib.crc32(client_id.encode()))
    rotation = int(torch.randint(NUM_CLUSTERS, (1,), generator=random))
    while True:
        for _ in range(10):
            yield turned(rotation, torch.randint(500, len(LABELS), (100,), generator=random))
        rotation = (rotation + 1) % NUM_CLUSTERS
