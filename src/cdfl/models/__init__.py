"""The networks of the paper, and small ones for 8x8 images, text, tables and series.

>>> model = build("cnn", input_shape=(1, 28, 28), num_outputs=10)
>>> sum(parameter.numel() for parameter in model.parameters())
582026
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from cdfl.argument_checks import did_you_mean
from cdfl.models.cnn import cnn, small_cnn
from cdfl.models.mlp import mlp
from cdfl.models.resnet import resnet18
from cdfl.models.text import gru, transformer

Shape = tuple[int, ...]  # of one input; channels, height and width of an image

MakeModel = Callable[[Any, int], nn.Module]  # (input_shape, num_outputs) -> network

MODELS: dict[str, MakeModel] = {
    "cnn": cnn,
    "gru": gru,
    "mlp": mlp,
    "resnet18": resnet18,
    "small-cnn": small_cnn,
    "transformer": transformer,
}


def build(model: str, input_shape: Shape, num_outputs: int) -> nn.Module:
    """Make a network with new random weights from its name; torch's global generator decides the weights."""
    if model not in MODELS:
        raise ValueError(f"there is no model {model!r}; there are {', '.join(MODELS)}{did_you_mean(model, MODELS)}")
    return MODELS[model](input_shape, num_outputs)


__all__ = ["MODELS", "MakeModel", "build"]
