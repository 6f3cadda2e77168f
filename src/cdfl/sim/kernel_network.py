"""Sequential networks for stacks of clients, with forward and backward passes written out in kernels.

The time of a small stack depends on the number of kernels, not on their work. Autograd launches about fifty for a step
of the paper's CNN; this module launches about twenty. One kernel brings all weights into the order and type of the
other kernels; ReLU, biases and the loss are fused into their neighbours; every gradient is written to its position in
one flat tensor. Row b of every tensor belongs to client b. Images are (B, N, H, W, C), channels last.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from cdfl.algorithms.fedem import MixtureNetwork
from cdfl.core import Layout
from cdfl.sim.kernels import (
    Precision,
    aligned,
    bias_relu,
    bias_relu_grad,
    conv_grad_input,
    conv_grad_weight,
    conv_relu_pool,
    cross_entropy_grad,
    product,
    take_columns,
)

Views = dict[str, Tensor]


class Layer(Protocol):
    """One part of the network."""

    def operands(self, places: Views, channels: int) -> Views:
        """Return the weights to copy before use: for each number its position in the model, or -1 for a zero.

        `places` holds the positions by parameter name; `channels` is the number of channels of the images.
        """
        ...

    def forward(self, weights: Views, inputs: Tensor, active: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return the outputs, and what the backward pass needs."""
        ...

    def backward(self, weights: Views, kept: Any, grad: Tensor, grads: "Gradients") -> Tensor | None:
        """Write the gradients of the layer's weights; return that of its inputs, or None if it is not needed."""
        ...


class Gradients:
    """Gradients by parameter name, and a second CUDA stream that computes those of weights.

    A small stack leaves much of a GPU idle, so the gradients of a layer's weights and of its inputs are computed at the
    same time. The gradients of weights are needed only at the end.
    """

    def __init__(self, flat: Tensor, layout: Layout, stream: torch.cuda.Stream | None) -> None:
        self.views = layout.views(flat)
        self.stream = stream
        self._used: list[Tensor] = []

    def __getitem__(self, name: str) -> Tensor:
        return self.views[name]

    @contextmanager
    def second_stream(self, *used: Tensor) -> Iterator[None]:
        """Run the block on the second stream; `used` are the tensors that it reads."""
        if self.stream is None:
            yield
            return
        self._used += used  # keeps their memory from being reused by the first stream
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Wait for the second stream."""
        if self.stream is not None and self._used:
            torch.cuda.current_stream().wait_stream(self.stream)
            self._used.clear()


@dataclass(frozen=True)
class Convolution:
    """Convolution, ReLU and pooling."""

    name: str
    precision: Precision
    first: bool  # no layer before it is trained

    def operands(self, places: Views, channels: int) -> Views:
        """Return the filters in the order of the forward pass, and of the backward pass."""
        weight = places[f"{self.name}.weight"]  # (OC, C, kh, kw)
        if not self.first:
            return {
                f"{self.name}.forward": weight.permute(0, 2, 3, 1),
                f"{self.name}.backward": weight.permute(2, 3, 1, 0),
            }
        filled = pad(weight, (0, 0, 0, 0, 0, channels - weight.shape[1]), value=-1)
        return {f"{self.name}.forward": filled.permute(0, 2, 3, 1)}

    def forward(self, weights: Views, inputs: Tensor, active: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return the pooled images."""
        filters, bias = weights[f"{self.name}.forward"], weights[f"{self.name}.bias"]
        out, corner = conv_relu_pool(inputs, filters, bias, self.precision, active)
        return out, (inputs, corner)

    def backward(self, weights: Views, kept: Any, grad: Tensor, grads: Gradients) -> Tensor | None:
        """Return the gradient of the images."""
        images, corner = kept
        own = grads[f"{self.name}.weight"], grads[f"{self.name}.bias"]
        if self.first:
            conv_grad_weight(images, grad, corner, *own, self.precision)
            return None
        with grads.second_stream(images, grad, corner):
            conv_grad_weight(images, grad, corner, *own, self.precision)
        return conv_grad_input(images, grad, corner, weights[f"{self.name}.backward"], self.precision)


@dataclass(frozen=True)
class Flatten:
    """Flatten images into vectors, in PyTorch's order."""

    def operands(self, places: Views, channels: int) -> Views:
        """Return nothing to copy."""
        return {}

    def forward(self, weights: Views, inputs: Tensor, active: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return vectors (B, N, C * H * W)."""
        return inputs.permute(0, 1, 4, 2, 3).flatten(2), inputs

    def backward(self, weights: Views, kept: Any, grad: Tensor, grads: Gradients) -> Tensor:
        """Return the gradient in the shape of the images."""
        B, N, H, W, C = kept.shape
        return torch.empty_like(kept).copy_(grad.view(B, N, C, H, W).permute(0, 1, 3, 4, 2))


@dataclass(frozen=True)
class Linear:
    """A linear layer and ReLU; or, at the end of a network, a linear layer and cross-entropy."""

    name: str
    precision: Precision
    first: bool

    def operands(self, places: Views, channels: int) -> Views:
        """Return the weights if they must be rounded to bfloat16; models are stored in float32."""
        name = f"{self.name}.weight"
        return {name: places[name]} if self.precision == "bf16" else {}

    def sums(self, weights: Views, inputs: Tensor) -> Tensor:
        """Return the outputs (B, N, F) before the bias."""
        return product(inputs, weights[f"{self.name}.weight"].mT)

    def forward(self, weights: Views, inputs: Tensor, active: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return the outputs after ReLU."""
        inputs = inputs.to(weights[f"{self.name}.weight"].dtype)
        out = bias_relu(self.sums(weights, inputs), weights[f"{self.name}.bias"], inputs.dtype)
        return out, (inputs, out)

    def backward(self, weights: Views, kept: Any, grad: Tensor, grads: Gradients) -> Tensor | None:
        """Return the gradient of the inputs."""
        inputs, out = kept
        grad = bias_relu_grad(grad, out, grads[f"{self.name}.bias"], inputs.dtype)
        return self._backward_product(weights, inputs, grad, grads)

    def logits(self, weights: Views, inputs: Tensor) -> Tensor:
        """Return the logits, as the last layer."""
        inputs = inputs.to(weights[f"{self.name}.weight"].dtype)
        return self.sums(weights, inputs) + weights[f"{self.name}.bias"][:, None]

    def backward_from_loss(self, weights: Views, inputs: Tensor, targets: Tensor, grads: Gradients) -> Tensor | None:
        """Run the backward pass from the cross-entropy, as the last layer; the loss itself is not computed."""
        inputs = inputs.to(weights[f"{self.name}.weight"].dtype)
        bias, grad_bias = weights[f"{self.name}.bias"], grads[f"{self.name}.bias"]
        grad = cross_entropy_grad(self.sums(weights, inputs), bias, targets, grad_bias, inputs.dtype)
        return self._backward_product(weights, inputs, grad, grads)

    def backward_from_logits(self, weights: Views, inputs: Tensor, grad: Tensor, grads: Gradients) -> Tensor | None:
        """Run the backward pass from the gradient of the logits (B, N, classes), as the last layer."""
        inputs = inputs.to(weights[f"{self.name}.weight"].dtype)
        grads[f"{self.name}.bias"].copy_(grad.sum(1))
        return self._backward_product(weights, inputs, grad.to(inputs.dtype), grads)

    def _backward_product(self, weights: Views, inputs: Tensor, grad: Tensor, grads: Gradients) -> Tensor | None:
        name = f"{self.name}.weight"
        with grads.second_stream(grad, inputs):
            product(grad.mT, inputs, out=grads[name])
        return None if self.first else product(grad, weights[name])


# (weights, inputs of the last layer, gradients to write) -> the gradient of those inputs
LastLayer = Callable[[Views, Tensor, Gradients], Tensor | None]


class KernelNetwork:
    """Convolutions, each with ReLU and 2x2 pooling; flattening; linear layers with ReLU between them; cross-entropy."""

    def __init__(self, layers: Sequence[Layer], last: Linear, layout: Layout, precision: Precision) -> None:
        self.layers = layers
        self.last = last
        self.layout = layout
        self.precision = precision
        self._operands: dict[tuple[int, torch.device], Operands] = {}
        self._stream: torch.cuda.Stream | None = None

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, precision: Precision) -> "KernelNetwork | None":
        """Return the network in this form, or None if it has other layers.

        >>> net = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1152, 10))
        >>> network = KernelNetwork.of(net, Layout.of(net), "tf32")
        >>> [type(layer).__name__ for layer in network.layers], network.last.name
        (['Convolution', 'Flatten'], '4')
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.Tanh())
        >>> KernelNetwork.of(net, Layout.of(net), "tf32") is None
        True
        """
        parts = list(model.named_children()) if isinstance(model, nn.Sequential) else []
        layers: list[Layer] = []
        while len(parts) > 2 and _is_convolution(*(part for _, part in parts[:3])):
            layers.append(Convolution(parts[0][0], precision, first=not layers))
            parts = parts[3:]
        if not parts or not _is_flatten(parts[0][1]):
            return None
        first = not layers
        layers.append(Flatten())
        parts = parts[1:]
        while len(parts) > 1 and _is_linear(parts[0][1]) and isinstance(parts[1][1], nn.ReLU):
            layers.append(Linear(parts[0][0], precision, first))
            first, parts = False, parts[2:]
        if len(parts) != 1 or not _is_linear(parts[0][1]):
            return None
        return cls(layers, Linear(parts[0][0], precision, first), layout, precision)

    def channels(self, channels: int) -> int:
        """Return how many channels to store images with: kernels read four faster than three."""
        return 4 if channels == 3 and isinstance(self.layers[0], Convolution) else channels

    def predict(self, models: Tensor, images: Tensor, active: Tensor | None = None) -> Tensor:
        """Return the logits of models (B, P) on images (B, N, H, W, C); undefined where `active` (B,) is false."""
        weights, hidden = self._weights(models, images), images
        for layer in self.layers:
            hidden, _ = layer.forward(weights, hidden, active)
        return self.last.logits(weights, hidden)

    def gradients(self, models: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient (B, P) of every client's cross-entropy."""

        def from_loss(weights: Views, hidden: Tensor, grads: Gradients) -> Tensor | None:
            return self.last.backward_from_loss(weights, hidden, targets, grads)

        return self.backward(models, images, from_loss)

    def backward(self, models: Tensor, images: Tensor, from_last: LastLayer) -> Tensor:
        """Return the gradient (B, P) of a loss; `from_last` runs the backward pass of the loss and the last layer."""
        flat = models.new_empty(len(models), aligned(self.layout.size))[:, : self.layout.size]
        weights, grads = self._weights(models, images), Gradients(flat, self.layout, self._second_stream(models.device))
        hidden, tape = images, []
        for layer in self.layers:
            hidden, kept = layer.forward(weights, hidden)
            tape.append(kept)
        grad = from_last(weights, hidden, grads)
        for layer in reversed(self.layers):
            if grad is None:
                break
            grad = layer.backward(weights, tape.pop(), grad, grads)
        grads.join()
        return flat

    def _second_stream(self, device: torch.device) -> torch.cuda.Stream | None:
        if self._stream is None and device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
        return self._stream

    def _weights(self, models: Tensor, images: Tensor) -> Views:
        """Return parameters by name, and the copies that the kernels need."""
        key = images.shape[4], models.device
        if key not in self._operands:
            places = self.layout.views(torch.arange(self.layout.size, dtype=torch.int32, device=models.device))
            found = [layer.operands(places, images.shape[4]) for layer in (*self.layers, self.last)]
            self._operands[key] = Operands({name: place for views in found for name, place in views.items()})
        dtype = torch.bfloat16 if self.precision == "bf16" else models.dtype
        return self.layout.views(models) | self._operands[key].of(models, dtype)


class Operands:
    """Copies of weights in the order and type in which kernels multiply them, made by one kernel."""

    def __init__(self, places: Views) -> None:
        self.shapes = {name: place.shape for name, place in places.items()}
        # Each copy is aligned to 128 bytes in either type.
        padded = [pad(place.flatten(), (0, -place.numel() % 64), value=-1) for place in places.values()]
        self.sizes = [len(place) for place in padded]
        self.source = torch.cat(padded) if padded else None  # (Q,)

    def of(self, models: Tensor, dtype: torch.dtype) -> Views:
        """Return the copies by name, each (B, *shape)."""
        if self.source is None:
            return {}
        pieces = take_columns(models, self.source, dtype).split(self.sizes, dim=1)
        return {
            name: piece[:, : shape.numel()].view(len(models), *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }


class MixtureKernels:
    """The kernels of a `MixtureNetwork`: its components are rows of a stack of their own."""

    def __init__(self, component: KernelNetwork, num_components: int) -> None:
        self.component = component
        self.num_components = num_components

    @classmethod
    def of(cls, model: nn.Module, precision: Precision) -> "MixtureKernels | None":
        """Return the kernels of a mixture of networks without statistics; None for other networks."""
        if not isinstance(model, MixtureNetwork):
            return None
        layout = Layout.of(model.components[0])
        component = KernelNetwork.of(model.components[0], layout, precision)
        has_statistics = layout.size > layout.num_parameters
        return None if component is None or has_statistics else cls(component, len(model.components))

    def channels(self, channels: int) -> int:
        """Return how many channels to store images with."""
        return self.component.channels(channels)

    def predict(self, models: Tensor, images: Tensor, active: Tensor | None = None) -> Tensor:
        """Return the log-probabilities of the mixtures on images (B, N, H, W, C)."""
        rows, shares = self._split(models)
        active = None if active is None else active.repeat_interleave(self.num_components)
        logits = self.component.predict(rows, images.repeat_interleave(self.num_components, dim=0), active)
        return torch.logsumexp(self._joint(logits, shares), dim=1)

    def gradients(self, models: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient (B, K * P + K) of every client's cross-entropy; the mixture is not trained."""
        rows, shares = self._split(models)
        last = self.component.last
        is_sample = targets >= 0
        classes = targets.clamp_min(0)[:, None, :, None]  # (B, 1, N, 1)

        def from_loss(weights: Views, hidden: Tensor, grads: Gradients) -> Tensor | None:
            joint = self._joint(last.logits(weights, hidden), shares)  # (B, K, N, classes)
            right = joint.gather(3, classes.expand(*joint.shape[:3], 1))  # log p(component, target)
            belongs = torch.softmax(right, dim=1)  # (B, K, N, 1): which component made the sample?
            probabilities = (joint - shares[:, :, None, None]).exp()
            grad = probabilities.scatter_add(3, classes.expand(*joint.shape[:3], 1), -torch.ones_like(right))
            count = is_sample.sum(dim=1).clamp_min(1)[:, None, None, None]
            grad = torch.where(is_sample[:, None, :, None], belongs * grad, 0.0) / count
            return last.backward_from_logits(weights, hidden, grad.flatten(0, 1), grads)

        flat = self.component.backward(rows, images.repeat_interleave(self.num_components, dim=0), from_loss)
        found = torch.zeros_like(models)
        found[:, : self.num_components * self.component.layout.size] = flat.reshape(len(models), -1)
        return found

    def _split(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """Return the components (B * K, P) and their log-shares (B, K)."""
        size = self.component.layout.size
        components, shares = models.split([self.num_components * size, self.num_components], dim=1)
        return components.reshape(-1, size), shares

    def _joint(self, logits: Tensor, shares: Tensor) -> Tensor:
        """Return log p(component, class) (B, K, N, classes), from logits (B * K, N, classes)."""
        own = torch.log_softmax(logits.float() if logits.dtype == torch.bfloat16 else logits, dim=2)
        joint: Tensor = own.unflatten(0, (-1, self.num_components)) + shares[:, :, None, None]
        return joint


def _is_convolution(layer: nn.Module, relu: nn.Module, pool: nn.Module) -> bool:
    """Return whether this is a convolution without padding, ReLU and 2x2 pooling."""
    if not (isinstance(layer, nn.Conv2d) and isinstance(relu, nn.ReLU) and isinstance(pool, nn.MaxPool2d)):
        return False
    sides = {tuple(side) if isinstance(side, tuple) else (side, side) for side in (pool.kernel_size, pool.stride)}
    return (
        layer.bias is not None
        and (layer.stride, layer.padding, layer.dilation, layer.groups) == ((1, 1), (0, 0), (1, 1), 1)
        and (sides, pool.padding, pool.dilation, pool.ceil_mode) == ({(2, 2)}, 0, 1, False)
    )


def _is_flatten(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) and layer.bias is not None
