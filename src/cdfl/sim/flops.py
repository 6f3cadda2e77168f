"""Count the floating-point operations of a network."""

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SAMPLES = 2  # the size of the counted batch; batch norm cannot train on one sample


class Flops(NamedTuple):
    """The operations of one sample: in the forward pass, and in training (forward and backward)."""

    forward: int
    training: int


def count_flops(model: nn.Module, input_shape: tuple[int, ...]) -> Flops:
    """Run a copy of the model on a small batch, and count its multiplications and additions.

    The backward pass costs less than twice the forward pass: the gradients of the inputs and of frozen parameters are
    not computed. The optimiser and the proximal term, once a batch, are not counted.

    >>> count_flops(nn.Linear(3, 2), (3,))      # 3 x 2 of each; the same again for the gradient of the weights
    Flops(forward=12, training=24)
    """
    model = copy.deepcopy(model)
    weight = next(model.parameters())
    inputs = torch.zeros(SAMPLES, *input_shape, device=weight.device, dtype=weight.dtype)
    gpus = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):  # dropout draws random numbers
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            model.eval()(inputs)
        with FlopCounterMode(display=False) as training, torch.enable_grad():
            model.train()(inputs).sum().backward()  # the counter ignores losses anyway
    return Flops(forward.get_total_flops() // SAMPLES, training.get_total_flops() // SAMPLES)
