"""A set-up for `cdfl serve`: model, loss and data of the server. Change it for your own problem.

The server needs `model`, `loss` and `proxy_sets`; `pretraining_sets` and `settings` are optional. A client
(`cdfl.Client`) needs the same `model`. The end of the file is for `cdfl join --setup FILE --watch`.
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
    """Return some of the digits, turned by 0, 90, 180 or 270 degrees."""
    images = IMAGES[chosen].rot90(cluster, dims=(2, 3))
    return images.to(memory_format=torch.channels_last), LABELS[chosen]  # evaluated twice as fast on a CPU


# -- what the server needs

# Any torch.nn.Module. Pre-training begins with its weights.
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

# Any function of (outputs, targets) that returns one number.
loss = cross_entropy

# For each cluster (inputs, targets): uploads are evaluated on them, to estimate which clusters a client is like.
proxy_sets = [turned(cluster, torch.arange(200)) for cluster in range(NUM_CLUSTERS)]

# For each cluster data for pre-training. Without them all clusters begin as `model`, trained elsewhere.
pretraining_sets = [turned(cluster, torch.arange(200, 500)) for cluster in range(NUM_CLUSTERS)]

# cdfl.core.Settings lists all settings; `cdfl join` uses those of training, too. The images are few and small, so
# clients and pre-training make many passes over them.
settings = Settings(batch_size=16, learning_rate=0.003, local_epochs=20, shared_epochs=2, separate_epochs=20)


# -- what `cdfl join --watch` needs

# When a client uploads: at its first turn, then whenever the loss on fresh data has risen by half.
policy = AtFirst(LossRises(factor=1.5))


def stream(client_id: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield fresh data of a client: digits of one rotation, and every ten turns of the next one, which is drift."""
    random = torch.Generator().manual_seed(zlib.crc32(client_id.encode()))
    rotation = int(torch.randint(NUM_CLUSTERS, (1,), generator=random))
    while True:
        for _ in range(10):
            yield turned(rotation, torch.randint(500, len(LABELS), (100,), generator=random))
        rotation = (rotation + 1) % NUM_CLUSTERS
