"""A network for rows of numbers: tables, and windows of a series."""

from math import prod

from torch import nn


def mlp(input_shape: tuple[int, ...], num_outputs: int) -> nn.Sequential:
    """Make a network with one hidden layer of 64 units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 64), nn.ReLU(), nn.Linear(64, num_outputs))
