"""The networks of the paper, and a small one for 8x8 images.

>>> model = build("cnn", input_shape=(1, 28, 28), num_outputs=10)
>>> sum(parameter.numel() for parameter in model.parameters())
582026
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from cdfl.models.cnn import cnn, small_cnn
from cdfl.models.resnet import resnet18

Shape = tuple[int, ...]  # of one input; channels, height and width of an image

MakeModel = Callable[[Any, int], nn.Module]  # (input_shape, num_outputs) -> network

MODELS: dict[str, MakeModel] = {
    "cnn": cnn,
    "resnet18": resnet18,
    "small-cnn": small_cnn,
}


def build(model: str | MakeModel, input_shape: Shape, num_outputs: int) -> nn.Module:
    """Make a network with new random weights, from its name or from a function.

    torch's global generator decides the weights.
    """
    if not callable(model) and model not in MODELS:
        raise ValueError(f"there is no model {model!r}; expected one of {', '.join(MODELS)}")
    network = (model if callable(model) else MODELS[model])(input_shape, num_outputs)
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"the model {model!r} returned a {type(network).__name__}; expected (input_shape, num_outputs) -> nn.Module"
        )
    return network


__all__ = ["MODELS", "MakeModel", "build"]
