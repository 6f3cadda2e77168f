"""Flatten a model into one vector, and load it back.

The vector holds all parameters and, after them, all floating-point buffers that are saved with the model (batch-norm
statistics). Both are mixed in the same way: statistics of a mixture are, to first order, the mixture of the
statistics. Only the parameters count in distances and in the proximal term, because the scale of a running variance
does not show how far apart two models are. Integer and boolean buffers (counters, masks) cannot be averaged; each
client keeps its own.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """The position of each tensor of a model in its vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    num_parameters: int  # entries of the vector that are trained; they come first
    size: int  # P: length of the vector

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        """Return the layout of a model's vector.

        >>> layout = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
        >>> layout.num_parameters, layout.size        # 3*2+2 + 2+2 parameters, 2+2 running statistics
        (12, 16)
        """
        parameters, tensors = dict(model.named_parameters()), tensors_of(model)
        if not parameters:
            raise ValueError(f"{type(model).__name__} has no parameters; expected a model with parameters to train")
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                raise ValueError(f"parameter {name} is {tensor.dtype}; only real floating-point ones can be mixed")
        return cls(
            names=tuple(tensors),
            shapes=tuple(tensor.shape for tensor in tensors.values()),
            num_parameters=sum(parameter.numel() for parameter in parameters.values()),
            size=sum(tensor.numel() for tensor in tensors.values()),
        )

    def views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the named tensors of one vector (P,) or of a stack of them (..., P), as views."""
        self.check(vectors)
        pieces = vectors.split([prod(shape) for shape in self.shapes], dim=-1)
        lead = vectors.shape[:-1]
        return {
            name: piece.view(lead + shape) for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def check(self, vectors: Tensor) -> None:
        """Raise ValueError if a vector does not fit this layout."""
        if vectors.ndim == 0 or vectors.shape[-1] != self.size:
            raise ValueError(
                f"the model vector has shape {tuple(vectors.shape)}; expected {self.size} entries in its last "
                "dimension: it belongs to another model"
            )


def flatten(model: nn.Module) -> Tensor:
    """Return a model's parameters and floating-point buffers as one new vector (P,).

    >>> flatten(nn.Linear(3, 2)).shape
    torch.Size([8])
    """
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors_of(model).values()])


def load(model: nn.Module, vector: Tensor) -> None:
    """Write a vector (P,) into a model, in place."""
    tensors = tensors_of(model)
    with torch.no_grad():
        for name, value in Layout.of(model).views(vector).items():
            tensors[name].copy_(value)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model that its vector holds, by name, in the vector's order."""
    saved = model.state_dict(keep_vars=True)
    buffers = {name: own for name, own in model.named_buffers() if name in saved and own.is_floating_point()}
    return dict(model.named_parameters()) | buffers
