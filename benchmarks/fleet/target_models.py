"""Models that clients of a fleet move towards: trained on data of their own, as honest clients do."""

import sys
from pathlib import Path

import numpy as np
import torch

from cdfl.core import client_update
from cdfl.scenarios import load_scenario
from cdfl.sim.runner import configure, simulations

MOST = 40  # models; further clients share them


def goals_of(setup: Path, clusters: np.ndarray, clients: int) -> np.ndarray:
    """Return a goal for each client (n, P): what it trains from the average of the clusters on its first data."""
    path = sys.path.copy()  # a set-up may import what lies beside it; processes that are started later must not
    (simulation,) = simulations([configure(load_scenario(str(setup)))])
    sys.path[:] = path
    instance, start = simulation.instance, torch.from_numpy(clusters).mean(dim=0)
    trained = []
    for number in range(min(MOST, clients)):
        turn = instance.turn_data(number, 0)
        inputs, targets = instance.inputs(turn.draw.train)
        batches = ((inputs[places], targets[places]) for places in turn.plan)
        trained.append(client_update(instance.model, start, batches, instance.loss, instance.settings.training))
    return torch.stack(trained).numpy()[np.arange(clients) % len(trained)]
