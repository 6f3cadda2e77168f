"""The work that every contender does, and how it reports: imported by each script in this folder, whatever its venv.

Rounds of federated averaging: every client trains from the same model on its own data, the results are averaged, and
the next round starts from the average. The first round warms up and is not measured.
"""

import json
import resource
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cdfl.models import build

LEARNING_RATE, WEIGHT_DECAY, CLASSES = 1e-3, 0.005, 10


@dataclass(frozen=True)
class Job:
    """One run: which work, in which setting of its contender."""

    model: str
    shape: tuple[int, int, int]
    samples: int
    epochs: int
    batch_size: int
    clients: int
    rounds: int  # that are measured; one more comes before them
    data: str  # file with images (clients, n, C, H, W) uint8 and labels (clients, n)
    setting: dict[str, Any]

    @classmethod
    def read(cls, path: str = "") -> "Job":
        """The job whose file is the first argument of the script."""
        values = json.loads(Path(path or sys.argv[1]).read_text())
        return cls(**{**values, "shape": tuple(values["shape"])})

    def network(self) -> nn.Module:
        """Return the network, with the same initial weights for all."""
        torch.manual_seed(0)
        return build(self.model, self.shape, CLASSES)


@lru_cache(maxsize=1)
def client_data(path: str) -> tuple[Tensor, Tensor]:
    """Images of all clients as a network takes them, float32 in [-1, 1] (clients, n, C, H, W), and labels."""
    data = torch.load(path, weights_only=True)
    return data["images"].float() / 127.5 - 1, data["labels"]


def train(model: nn.Module, images: Tensor, labels: Tensor, job: Job) -> None:
    """One client's training, as it is usually written."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    model.train()
    for _ in range(job.epochs):
        for batch in torch.randperm(len(labels)).split(job.batch_size):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


class Rounds:
    """When rounds ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def done(self) -> None:
        """Another round is over."""
        self.ends.append(time.time())

    def report(self, job: Job, *packages: str, **more: Any) -> None:
        """Print the one line that the benchmark reads."""
        if len(self.ends) != job.rounds + 1:
            raise RuntimeError(f"{len(self.ends)} rounds took place; expected {job.rounds + 1}")
        result = {
            "trainings": job.clients * job.rounds,
            "seconds": self.ends[-1] - self.ends[0],
            "round_ends": self.ends,
            "versions": {name: version(name) for name in ("torch", "numpy", *packages)},
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            **more,
        }
        print(json.dumps(result), flush=True)
