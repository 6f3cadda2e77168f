"""The networks of the paper, and a small one for 8x8 images.

>>> model = build("cnn", input_shape=(1, 28, 28), num_classes=10)
>>> sum(parameter.numel() for parameter in model.parameters())
582026
"""

from collections.abc import Callable

from torch import nn

from cdfl.models.cnn import cnn, small_cnn
from cdfl.models.resnet import resnet18

Shape = tuple[int, int, int]  # channels, height, width

MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "cnn": cnn,
    "resnet18": resnet18,
    "small-cnn": small_cnn,
}


def build(name: str, input_shape: Shape, num_classes: int) -> nn.Module:
    """Make a freshly initialised network; torch's global generator decides the weights."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; expected one of {', '.join(MODELS)}")
    return MODELS[name](input_shape, num_classes)


__all__ = ["MODELS", "build"]
