"""One network applied to B clients, each with its own weights: row b of the inputs meets row b of the models."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy, pad

from cdfl.core import Layout, Loss
from cdfl.sim.kernels import Precision as KernelPrecision
from cdfl.sim.kernels import conv_relu_pool
from cdfl.sim.kernels import cross_entropy as stacked_cross_entropy

Views = dict[str, Tensor]
Operation = Callable[[Views, Tensor, Tensor | None], Tensor]  # of weights, inputs, and which clients are wanted

KERNEL_PRECISION: dict[str, KernelPrecision] = {"float32": "ieee", "tf32": "tf32", "bfloat16": "bf16"}


class StackedNetwork:
    """Any network through `vmap`; on a GPU, plain chains of layers through kernels made for stacks.

    A network that keeps the device busy by itself is better called once for each row (`one_by_one`).
    """

    def __init__(
        self, model: nn.Module, layout: Layout, loss: Loss, precision: str, *, one_by_one: bool = False
    ) -> None:
        self.model = model
        self.layout = layout
        self.loss = loss
        self.precision = precision
        self.one_by_one = one_by_one
        self.force_chain = False  # on a CPU, where vmap is faster, for tests
        self._learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        parameters = dict(model.named_parameters())
        self._statistics = [name for name in layout.names if name not in parameters]
        self._chain = chain_of(model, KERNEL_PRECISION[precision])
        for layer in model.modules() if one_by_one else ():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.forward = _WithoutCudnn(layer.forward)  # type: ignore[assignment, method-assign]

    def channels(self, channels: int) -> int:
        """How many channels images should be kept with: kernels read four of them faster than three."""
        return 4 if channels == 3 and self._chain is not None else channels

    def look(self, models: Tensor, inputs: Tensor, active: Tensor | None = None) -> Tensor:
        """What models (B, P) say of inputs (B, n, ...), without training them; where `active` is false, anything."""
        self.model.eval()
        with torch.no_grad():
            return self._forward(self.layout.views(models), inputs, active).to(models.dtype)

    def gradients(self, models: Tensor, inputs: Tensor, targets: Tensor) -> Views:
        """The gradient of every client's loss, by name, each (B, *shape); batch statistics change in place."""
        self.model.train()
        views = self.layout.views(models)
        for name in self._learned:
            views[name] = views[name].detach().requires_grad_()
        kept = {name: views[name] for name in self._statistics}
        for name, view in kept.items():  # vmap updates only what lies in one piece; of other views it updates a copy
            views[name] = view.contiguous()
        outputs = self._forward(views, inputs)
        outputs = outputs.to(models.dtype)
        losses = self._losses(outputs, targets)  # (B,)
        # Rows do not touch each other, so the gradient of the sum is each row's own.
        leaves = [views[name] for name in self._learned]
        found = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
        for name, view in kept.items():  # now that the way back no longer needs the models as they were
            view.copy_(views[name])
        return dict(zip(self._learned, found, strict=True))

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.loss is cross_entropy and outputs.ndim == 3:  # on a GPU one kernel for both directions
            return stacked_cross_entropy(outputs, targets)
        losses: Tensor = vmap(self.loss)(outputs, targets)
        return losses

    def _forward(self, views: Views, inputs: Tensor, active: Tensor | None = None) -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            if self._chain is not None and (inputs.is_cuda or self.force_chain):
                for operation in self._chain:
                    inputs = operation(views, inputs, active)
                return inputs
            if self.one_by_one or len(inputs) == 1:
                rows = zip(*map(_rows, views.values()), strict=True)
                alone = [dict(zip(views, map(_channels_last, row), strict=True)) for row in rows]
                images = map(_channels_last, _rows(inputs))
                return torch.stack([self._call(*pair) for pair in zip(alone, images, strict=True)])
            outputs: Tensor = vmap(self._call)(views, inputs)
            return outputs

    def _call(self, views: Views, inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self.model, views, (inputs,))
        return outputs


class _WithoutCudnn:
    """Batch norm in PyTorch's own kernels: cuDNN's fail in a CUDA graph on channels-last float32, and are no faster."""

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        self.forward = forward

    def __call__(self, inputs: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return self.forward(inputs)


def _rows(tensor: Tensor) -> Sequence[Tensor]:
    """One tensor a row. Never by index, whose gradient fills a zero tensor; a single row costs nothing to take out."""
    return tensor.unbind() if len(tensor) > 1 else [tensor.squeeze(0)]


def _channels_last(tensor: Tensor) -> Tensor:
    """Images and filters as a GPU's matrix units want them; that halves the time of a convolution."""
    if tensor.is_cuda and tensor.ndim == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.contiguous()


def chain_of(model: nn.Module, precision: KernelPrecision) -> list[Operation] | None:
    """A network as operations on stacks, where it is a plain chain of layers that have one; else None.

    >>> blocks = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1152, 10))
    >>> len(chain_of(blocks, "tf32") or [])
    3
    >>> chain_of(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), "tf32") is None
    True
    """
    if not isinstance(model, nn.Sequential):
        return None
    layers = list(model.named_children())
    chain: list[Operation] = []
    place = 0
    while place < len(layers):
        name, layer = layers[place]
        following = [part for _, part in layers[place + 1 : place + 3]]
        if _is_plain_convolution(layer) and len(following) == 2 and _is_relu_pool(*following):
            chain.append(_convolution(name, precision))
            place += 3
        elif isinstance(layer, nn.Flatten) and layer.start_dim == 1 and layer.end_dim == -1:
            chain.append(lambda views, inputs, active: inputs.flatten(2))
            place += 1
        elif isinstance(layer, nn.Linear) and layer.bias is not None:
            chain.append(_linear(name))
            place += 1
        elif isinstance(layer, nn.ReLU):
            chain.append(lambda views, inputs, active: torch.relu(inputs))
            place += 1
        else:
            return None
    return chain


def _is_plain_convolution(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.Conv2d)
        and layer.bias is not None
        and (layer.stride, layer.padding, layer.dilation, layer.groups) == ((1, 1), (0, 0), (1, 1), 1)
    )


def _is_relu_pool(relu: nn.Module, pool: nn.Module) -> bool:
    if not (isinstance(relu, nn.ReLU) and isinstance(pool, nn.MaxPool2d)):
        return False
    sides = {tuple(v) if isinstance(v, tuple) else (v, v) for v in (pool.kernel_size, pool.stride)}
    return sides == {(2, 2)} and (pool.padding, pool.dilation, pool.ceil_mode) == (0, 1, False)


def _convolution(name: str, precision: KernelPrecision) -> Operation:
    def apply(views: Views, inputs: Tensor, active: Tensor | None) -> Tensor:
        weight = views[f"{name}.weight"]  # (B, O, C, kh, kw)
        filling = inputs.shape[2] - weight.shape[2]
        if filling > 0:
            weight = pad(weight, (0, 0, 0, 0, 0, filling))
        return conv_relu_pool(inputs, weight, views[f"{name}.bias"], precision, active)

    return apply


def _linear(name: str) -> Operation:
    def apply(views: Views, inputs: Tensor, active: Tensor | None) -> Tensor:
        return torch.baddbmm(views[f"{name}.bias"][:, None], inputs, views[f"{name}.weight"].transpose(1, 2))

    return apply
