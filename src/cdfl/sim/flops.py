"""Floating-point operations of a network, counted while it runs."""

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SAMPLES = 2  # batch norm does not train on one


class Flops(NamedTuple):
    """What one sample costs: on its way through the network, and in training, there and back."""

    forward: int
    training: int


def count_flops(model: nn.Module, input_shape: tuple[int, ...]) -> Flops:
    """Count the multiplications and additions of a copy of the model, wherever it is, on a small batch.

    The way back is less than two ways there: nobody asks for the gradient of the inputs, nor of what is not trained.
    What optimiser and proximal term do to each weight, once a batch, is not counted.

    >>> count_flops(nn.Linear(3, 2), (3,))      # 3 x 2 of both; the same again for the gradient of the weights
    Flops(forward=12, training=24)
    """
    model = copy.deepcopy(model)
    weight = next(model.parameters())
    inputs = torch.zeros(SAMPLES, *input_shape, device=weight.device, dtype=weight.dtype)
    gpus = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):  # dropout draws
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            model.eval()(inputs)
        with FlopCounterMode(display=False) as training, torch.enable_grad():
            model.train()(inputs).sum().backward()  # a loss has neither matrices nor convolutions, which are counted
    return Flops(forward.get_total_flops() // SAMPLES, training.get_total_flops() // SAMPLES)
