"""Your own network and data: for each cluster a pair of tensors."""

import torch
from torch import nn

import cdfl

torch.manual_seed(0)
angles = {"east": 0.0, "north": 1.6, "west": 3.1}  # in each region the classes lie in another direction


def samples(angle: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points, and on which side of a line they are."""
    points = torch.randn(600, 2)
    line = torch.tensor([torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))])
    return points, (points @ line > 0).long()


problem = cdfl.Problem(
    model=lambda: nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)),
    clusters={name: samples(angle) for name, angle in angles.items()},
    settings={"batch_size": 16, "learning_rate": 0.01},
)
run = cdfl.run(problem, num_uploads=45)
print(run)
east = run.cluster_models["east"]  # a torch.nn.Module
print("east of the origin:", east(torch.tensor([[2.0, 0.0]])).argmax().item())
