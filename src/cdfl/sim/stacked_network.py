"""Apply one network to B clients, each with its own weights: row b of the models gets row b of the inputs."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from cdfl.core import Layout, Loss
from cdfl.core.sample_losses import row_losses
from cdfl.sim.fused_norms import fuse_norms
from cdfl.sim.kernel_network import KernelNetwork, MixtureKernels, Views
from cdfl.sim.kernels import Precision as KernelPrecision
from cdfl.sim.kernels import cross_entropy as stacked_cross_entropy
from cdfl.sim.kernels import runs_triton

Piece = tuple[slice, list[str]]  # columns of a stack, and the parameters in them

STREAMS = 4  # a GPU computes this many rows of a big network at the same time

KERNEL_PRECISION: dict[str, KernelPrecision] = {"float32": "ieee", "tf32": "tf32", "bfloat16": "bf16"}


class StackedNetwork:
    """Runs any network through `vmap`; on a GPU, a `KernelNetwork` where the layers allow it.

    A network big enough to keep the device busy is called once for each row (`one_by_one`), a few rows at the same
    time: while one row waits for memory, another computes.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        loss: Loss,
        precision: str,
        *,
        one_by_one: bool = False,
        images: bool = True,
    ) -> None:
        self.model = model
        self.layout = layout
        self.loss = loss
        self.precision = precision
        self.one_by_one = one_by_one
        self.force_kernels = False  # tests set it to use the kernel network on a CPU
        self.pieces = learned_pieces(model, layout)  # the trained columns, in pieces
        parameters = dict(model.named_parameters())
        self._learned = [name for name, parameter in parameters.items() if parameter.requires_grad]
        self._statistics = [name for name in layout.names if name not in parameters]
        self.kernel_network: KernelNetwork | MixtureKernels | None = None
        if images and loss is cross_entropy:
            exact = KERNEL_PRECISION[precision]
            self.kernel_network = KernelNetwork.of(model, layout, exact) or MixtureKernels.of(model, exact)
        self._piece_columns = [columns for columns, _ in self.pieces]  # for gradients that are one tensor
        self._streams: list[torch.cuda.Stream] = []
        if one_by_one:
            fuse_norms(model)

    def kernel_network_for(self, tensor: Tensor) -> KernelNetwork | MixtureKernels | None:
        """Return the kernel network if there is one and its kernels can take this tensor."""
        return self.kernel_network if self.force_kernels or runs_triton(tensor) else None

    def predict(self, models: Tensor, inputs: Tensor, active: Tensor | None = None) -> Tensor:
        """Evaluate models (B, P) on inputs (B, n, ...); outputs are undefined where `active` is false."""
        kernels = self.kernel_network_for(models)
        with torch.no_grad():
            if kernels is not None:
                return kernels.predict(models, _images(inputs), active)
            self.model.eval()
            return self._forward(self.layout.views(models), inputs).to(models.dtype)

    def gradients(self, models: Tensor, inputs: Tensor, targets: Tensor) -> list[tuple[slice, Tensor]]:
        """Return the gradient of every client's loss in pieces: columns of the models, and a tensor (B, columns).

        Batch statistics change in place.
        """
        kernels = self.kernel_network_for(models)
        if kernels is not None:
            with torch.no_grad():
                flat = kernels.gradients(models, _images(inputs), targets)
            return [(columns, flat[:, columns]) for columns in self._piece_columns]
        if self.one_by_one:
            flat = self._row_by_row(models, inputs, targets)
            return [(columns, flat[:, columns]) for columns in self._piece_columns]
        found = self._by_autograd(models, inputs, targets)
        pieces = [(columns, [found[name].flatten(1) for name in names]) for columns, names in self.pieces]
        return [(columns, torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]) for columns, parts in pieces]

    def _row_by_row(self, models: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients (B, P), in the layout of the models."""
        self.model.train()
        flat = torch.empty(models.shape, dtype=models.dtype, device=models.device)
        for row in self.side_by_side(len(models), models.device):
            self._gradient_of_one(models[row], inputs[row], targets[row], flat[row])
        return flat

    def _gradient_of_one(self, model: Tensor, inputs: Tensor, targets: Tensor, gradient: Tensor) -> None:
        """Write the gradient (P,) of one client's loss."""
        first = self.layout.num_parameters
        statistics = model[first:]
        changed = statistics.clone()  # the backward pass needs the model unchanged
        values = self.layout.views(model) | self._statistics_of(changed)
        leaves = {name: self._operand(values[name].detach()).requires_grad_() for name in self._learned}
        with self._autocast(inputs):
            outputs = self._call(values | leaves, _channels_last(inputs)).to(model.dtype)
        loss = self._losses(outputs[None], targets[None]).sum()
        found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        statistics.copy_(changed)
        views = self.layout.views(gradient)
        pairs = [(views[name], own) for name, own in zip(leaves, found, strict=True)]
        for target, own in pairs:
            if own.ndim > 1:
                target.copy_(own)
        small = [pair for pair in pairs if pair[1].ndim <= 1]
        torch._foreach_copy_([target for target, _ in small], [own for _, own in small])  # many in one kernel

    def _statistics_of(self, vector: Tensor) -> Views:
        """Return the named statistics in a vector that holds nothing else."""
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        pieces = vector.split([shapes[name].numel() for name in self._statistics])
        return {name: piece.view(shapes[name]) for name, piece in zip(self._statistics, pieces, strict=True)}

    def _operand(self, weight: Tensor) -> Tensor:
        """Return the filters of a convolution as it takes them: one copy instead of autograd's two each way."""
        if weight.ndim != 4 or not weight.is_cuda:
            return weight
        dtype = torch.bfloat16 if self.precision == "bfloat16" else weight.dtype
        return weight.to(dtype, memory_format=torch.channels_last)

    def side_by_side(self, count: int, device: torch.device) -> Iterator[int]:
        """Yield 0, 1, 2... in alternating CUDA streams, so that a GPU can compute several at the same time.

        The streams wait for earlier work at the start, and the current stream waits for them at the end.
        """
        if device.type != "cuda" or count == 1:
            yield from range(count)
            return
        while len(self._streams) < min(count, STREAMS):
            self._streams.append(torch.cuda.Stream(device))
        now, streams = torch.cuda.current_stream(device), self._streams[: min(count, STREAMS)]
        for stream in streams:
            stream.wait_stream(now)
        for place in range(count):
            with torch.cuda.stream(streams[place % len(streams)]):
                yield place
        for stream in streams:
            now.wait_stream(stream)

    def _by_autograd(self, models: Tensor, inputs: Tensor, targets: Tensor) -> Views:
        self.model.train()
        views = self.layout.views(models)
        for name in self._learned:
            views[name] = views[name].detach().requires_grad_()
        kept = {name: views[name] for name in self._statistics}
        for name, view in kept.items():  # vmap updates contiguous tensors in place, and only a copy of others
            views[name] = view.contiguous()
        outputs = self._forward(views, inputs)
        outputs = outputs.to(models.dtype)
        losses = self._losses(outputs, targets)  # (B,)
        # Rows are independent, so the gradient of the sum holds each row's gradient.
        leaves = [views[name] for name in self._learned]
        found = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
        for name, view in kept.items():  # after the backward pass, which needs the models unchanged
            view.copy_(views[name])
        return dict(zip(self._learned, found, strict=True))

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        is_class = not targets.is_floating_point() and outputs.ndim == targets.ndim + 1
        if self.loss is cross_entropy and is_class:  # on a GPU, one kernel for forward and backward
            return stacked_cross_entropy(outputs, targets)
        return row_losses(self.loss, outputs, targets)

    def _forward(self, views: Views, inputs: Tensor) -> Tensor:
        with self._autocast(inputs):
            if self.one_by_one or len(inputs) == 1:
                alone = list(zip(*map(_rows, (*views.values(), inputs)), strict=True))
                outputs = []
                for row in self.side_by_side(len(alone), inputs.device):
                    *tensors, images = alone[row]
                    operands = dict(zip(views, map(self._operand, tensors), strict=True))
                    outputs.append(self._call(operands, _channels_last(images)))
                return torch.stack(outputs)
            together: Tensor = vmap(self._call)(views, inputs)
            return together

    def _autocast(self, inputs: Tensor) -> torch.autocast:
        return torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def _call(self, views: Views, inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self.model, views, (inputs,))
        return outputs


def _rows(tensor: Tensor) -> Sequence[Tensor]:
    """Split a tensor into rows without indexing: the gradient of an index fills a whole tensor of zeros."""
    return tensor.unbind() if len(tensor) > 1 else [tensor.squeeze(0)]


def _channels_last(tensor: Tensor) -> Tensor:
    """Return images and filters channels last for a GPU's matrix units: it halves the time of a convolution."""
    if tensor.is_cuda and tensor.ndim == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.contiguous()


def _images(inputs: Tensor) -> Tensor:
    """Return inputs (B, n, C, H, W) as (B, n, H, W, C), contiguous for each client; copy only if needed."""
    images = inputs.permute(0, 1, 3, 4, 2)
    return images if images[0].is_contiguous() else images.contiguous()


def learned_pieces(model: nn.Module, layout: Layout, *, apart: bool = False) -> list[Piece]:
    """Return the columns of a stack that are trained, in contiguous pieces, or with `apart` one piece for each tensor.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> learned_pieces(net, Layout.of(net))
    [(slice(0, 13, None), ['0.weight', '0.bias', '1.weight', '1.bias'])]
    >>> _ = net[0].weight.requires_grad_(False)
    >>> learned_pieces(net, Layout.of(net), apart=True)
    [(slice(6, 9, None), ['0.bias']), (slice(9, 12, None), ['1.weight']), (slice(12, 13, None), ['1.bias'])]
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    ends = list(accumulate(shape.numel() for shape in layout.shapes))
    columns = [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
    pieces: list[Piece] = []
    for learned, group in groupby(zip(layout.names, columns, strict=True), key=lambda place: place[0] in trained):
        members = list(group)
        if learned and apart:
            pieces += [(own, [name]) for name, own in members]
        elif learned:
            pieces.append((slice(members[0][1].start, members[-1][1].stop), [name for name, _ in members]))
    return pieces
