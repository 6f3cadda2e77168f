"""Replace batch norm in a network that is called once for each client: ReLU and the sum before it join its kernel."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cdfl.models.resnet import Block
from cdfl.sim.kernels import norm_relu


def fuse_norms(model: nn.Module) -> None:
    """Replace what batch norm layers, the ReLUs after them and the blocks of a ResNet compute; keep their weights."""
    for module in list(model.modules()):
        if type(module) is nn.Sequential:
            for layer, after in pairwise(module):
                if _fits(layer) and type(after) is nn.ReLU:
                    _replace(layer, _Norm(layer, relu=True))
                    _replace(after, _same)
        elif isinstance(module, Block) and _fits(module.body[-1]):
            _replace(module, _WholeBlock(module))
    for module in model.modules():
        if _fits(module) and "forward" not in vars(module):
            _replace(module, _Norm(module, relu=False))
        elif isinstance(module, nn.modules.batchnorm._BatchNorm) and not _fits(module):
            _replace(module, _WithoutCudnn(module.forward))


def _fits(layer: Any) -> bool:
    is_usual = type(layer) is nn.BatchNorm2d and layer.affine and layer.track_running_stats
    return is_usual and layer.momentum is not None


def _replace(module: Any, forward: Callable[[Tensor], Tensor]) -> None:
    module.forward = forward


def _same(inputs: Tensor) -> Tensor:
    return inputs


class _Norm:
    """Batch norm; of one layer, whose weights may be replaced during a call."""

    def __init__(self, layer: nn.Module, *, relu: bool) -> None:
        self.layer, self.relu = layer, relu

    def __call__(self, inputs: Tensor, added: Tensor | None = None) -> Tensor:
        own: Any = self.layer
        with torch.backends.cudnn.flags(enabled=False):  # cuDNN's fails in a CUDA graph on channels-last float32
            return norm_relu(
                inputs,
                own.weight,
                own.bias,
                own.running_mean,
                own.running_var,
                added,
                training=own.training,
                momentum=own.momentum,
                eps=own.eps,
                relu=self.relu,
            )


class _WholeBlock:
    """A block of a ResNet: its last batch norm also adds the shortcut."""

    def __init__(self, block: Block) -> None:
        *self.layers, norm = block.body
        self.shortcut, self.norm = block.shortcut, _Norm(norm, relu=True)

    def __call__(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden, self.shortcut(inputs))


class _WithoutCudnn:
    """Other batch norms, in PyTorch's kernels: cuDNN's fail in a CUDA graph on channels-last float32."""

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        self.forward = forward

    def __call__(self, inputs: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return self.forward(inputs)
