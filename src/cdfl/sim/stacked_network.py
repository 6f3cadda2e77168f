"""One network applied to B clients, each with its own weights: row b of the inputs meets row b of the models."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from cdfl.core import Layout, Loss
from cdfl.sim.kernel_network import KernelNetwork, Views
from cdfl.sim.kernels import Precision as KernelPrecision
from cdfl.sim.kernels import cross_entropy as stacked_cross_entropy
from cdfl.sim.kernels import runs_triton

Run = tuple[slice, list[str]]  # columns of a stack, and whose they are

LANES = 4  # rows of a big network that a GPU works on at the same time

KERNEL_PRECISION: dict[str, KernelPrecision] = {"float32": "ieee", "tf32": "tf32", "bfloat16": "bf16"}


class StackedNetwork:
    """Any network through `vmap`; on a GPU, plain chains of layers (`KernelNetwork`) through kernels made for stacks.

    A network that keeps the device busy by itself is better called once for each row (`one_by_one`), a few rows side by
    side: where one of them waits for memory, another computes.
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
        self.runs = runs_of_learned(model, layout)  # the pieces of what autograd finds
        parameters = dict(model.named_parameters())
        self._learned = [name for name, parameter in parameters.items() if parameter.requires_grad]
        self._statistics = [name for name in layout.names if name not in parameters]
        self.chain = KernelNetwork.of(model, layout, KERNEL_PRECISION[precision]) if loss is cross_entropy else None
        self._whole_runs = [columns for columns, _ in self.runs]  # of gradients that are one tensor
        self._lanes: list[torch.cuda.Stream] = []
        for layer in model.modules() if one_by_one else ():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.forward = _WithoutCudnn(layer.forward)  # type: ignore[assignment, method-assign]

    def chain_for(self, tensor: Tensor) -> KernelNetwork | None:
        """The chain, if there is one and it is the way to go for tensors like this one."""
        return self.chain if self.force_chain or runs_triton(tensor) else None

    def predict(self, models: Tensor, inputs: Tensor, active: Tensor | None = None) -> Tensor:
        """What models (B, P) say of inputs (B, n, ...), without training them; where `active` is false, anything."""
        chain = self.chain_for(models)
        with torch.no_grad():
            if chain is not None:
                return chain.predict(models, _images(inputs), active)
            self.model.eval()
            return self._forward(self.layout.views(models), inputs).to(models.dtype)

    def gradients(self, models: Tensor, inputs: Tensor, targets: Tensor) -> list[tuple[slice, Tensor]]:
        """The gradient of every client's loss, in pieces: columns of the models, and a tensor (B, columns) for them.

        Batch statistics change in place.
        """
        chain = self.chain_for(models)
        if chain is not None:
            with torch.no_grad():
                flat = chain.gradients(models, _images(inputs), targets)
            return [(columns, flat[:, columns]) for columns in self._whole_runs]
        if self.one_by_one:
            flat = self._row_by_row(models, inputs, targets)
            return [(columns, flat[:, columns]) for columns in self._whole_runs]
        found = self._by_autograd(models, inputs, targets)
        pieces = [(columns, [found[name].flatten(1) for name in names]) for columns, names in self.runs]
        return [(columns, torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]) for columns, parts in pieces]

    def _row_by_row(self, models: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The gradients (B, P), which lie where the models' numbers lie."""
        flat = torch.empty(models.shape, dtype=models.dtype, device=models.device)
        for row in self._side_by_side(len(models), models.device):
            own = slice(row, row + 1)
            views = self.layout.views(flat[own])
            for name, gradient in self._by_autograd(models[own], inputs[own], targets[own]).items():
                views[name].copy_(gradient)
        return flat

    def _side_by_side(self, count: int, device: torch.device) -> Iterator[int]:
        """0, 1, 2..., each in a lane of its own while there are any: a GPU may do what is in different lanes at once.

        Lanes begin after what was asked for before and are waited for at the end, so tensors may cross over freely.
        """
        if device.type != "cuda" or count == 1:
            yield from range(count)
            return
        while len(self._lanes) < min(count, LANES):
            self._lanes.append(torch.cuda.Stream(device))
        now, lanes = torch.cuda.current_stream(device), self._lanes[: min(count, LANES)]
        for lane in lanes:
            lane.wait_stream(now)
        for place in range(count):
            with torch.cuda.stream(lanes[place % len(lanes)]):
                yield place
        for lane in lanes:
            now.wait_stream(lane)

    def _by_autograd(self, models: Tensor, inputs: Tensor, targets: Tensor) -> Views:
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

    def _forward(self, views: Views, inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            if self.one_by_one or len(inputs) == 1:
                alone = list(zip(*map(_rows, (*views.values(), inputs)), strict=True))
                outputs = []
                for row in self._side_by_side(len(alone), inputs.device):
                    *tensors, images = map(_channels_last, alone[row])
                    outputs.append(self._call(dict(zip(views, tensors, strict=True)), images))
                return torch.stack(outputs)
            together: Tensor = vmap(self._call)(views, inputs)
            return together

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


def _images(inputs: Tensor) -> Tensor:
    """Inputs (B, n, C, H, W) as (B, n, H, W, C), each client's in one piece; copied only if they lie otherwise."""
    images = inputs.permute(0, 1, 3, 4, 2)
    return images if images[0].is_contiguous() else images.contiguous()


def runs_of_learned(model: nn.Module, layout: Layout, *, apart: bool = False) -> list[Run]:
    """The columns of a stack that are trained, in runs; frozen parameters lie between them. Or each tensor `apart`.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> runs_of_learned(net, Layout.of(net))
    [(slice(0, 13, None), ['0.weight', '0.bias', '1.weight', '1.bias'])]
    >>> _ = net[0].weight.requires_grad_(False)
    >>> runs_of_learned(net, Layout.of(net), apart=True)
    [(slice(6, 9, None), ['0.bias']), (slice(9, 12, None), ['1.weight']), (slice(12, 13, None), ['1.bias'])]
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    ends = list(accumulate(shape.numel() for shape in layout.shapes))
    columns = [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
    runs: list[Run] = []
    for learned, group in groupby(zip(layout.names, columns, strict=True), key=lambda place: place[0] in trained):
        members = list(group)
        if learned and apart:
            runs += [(own, [name]) for name, own in members]
        elif learned:
            runs.append((slice(members[0][1].start, members[-1][1].stop), [name for name, _ in members]))
    return runs
