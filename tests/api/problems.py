"""A problem that runs in no time: two straight lines."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import cdfl

QUICK = {"local_epochs": 1, "shared_epochs": 1, "separate_epochs": 1}


def lines(**changes) -> cdfl.Problem:
    noise = torch.Generator().manual_seed(0)
    inputs = torch.randn(120, 2, generator=noise)
    sums = inputs.sum(1, keepdim=True)
    given = {
        "name": "lines",
        "model": lambda: nn.Linear(2, 1),
        "loss": mse_loss,
        "metrics": ["rmse", "r2"],
        "clusters": {"up": (inputs, sums), "down": (inputs, -sums)},
        "settings": {"batch_size": 8, "learning_rate": 0.05},
    }
    return cdfl.Problem(**given | changes)
