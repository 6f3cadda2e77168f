"""Clients as one tensor program: B networks of one shape, each with its own weights and data, trained together.

Row b of every tensor belongs to client b and no operation mixes rows, so a row's result is that of training it alone,
up to rounding. Clients are sorted by their number of steps; those that are done leave at the end of the stack, and
the others go on in a shorter one. Nothing is padded: all batches of a stack have the same size, and a training with
another batch size goes into another stack.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cdfl.core import Hyperparams, Layout, Loss
from cdfl.data import to_input
from cdfl.sim.engine import Training, fetch_all

Views = dict[str, Tensor]


class Stack:
    """Trains up to `width` clients at once, for any network that `torch.func.vmap` can handle."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        hyperparams: Hyperparams,
        dtype: torch.dtype = torch.float32,
        width: int = 64,
        rows: int = 2**16,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.layout = Layout.of(model)
        self.loss = loss
        self.hyperparams = hyperparams
        self.dtype = dtype
        self.width = width
        self.rows = rows  # images that are looked at together when nothing is trained
        self._learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """The local models (B, P)."""
        device = trainings[0].start.device
        result = torch.empty(len(trainings), self.layout.size, dtype=self.dtype, device=device)
        by_batch: dict[int, list[int]] = defaultdict(list)
        for place, training in enumerate(trainings):
            by_batch[training.plan.shape[1]].append(place)
        for places in by_batch.values():
            places.sort(key=lambda place: -len(trainings[place].plan))
            for first in range(0, len(places), self.width):
                chunk = places[first : first + self.width]
                result[chunk] = self._train_stack([trainings[place] for place in chunk])
        return result

    def outputs(self, models: Tensor, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """What each model (B, P) says; inputs of different lengths are filled up and the filling cut off again."""
        self.model.eval()
        longest = len(inputs) if isinstance(inputs, Tensor) else max(len(own) for own in inputs)
        together = max(1, self.rows // max(1, longest))
        found: list[Tensor] = []
        with torch.no_grad():
            for first in range(0, len(models), together):
                views = self.layout.views(models[first : first + together])
                if isinstance(inputs, Tensor):
                    found.extend(vmap(self._call, in_dims=(0, None))(views, inputs))
                else:
                    own = inputs[first : first + together]
                    filled = nn.utils.rnn.pad_sequence(list(own), batch_first=True)
                    outputs = vmap(self._call)(views, filled)
                    found.extend(row[: len(part)] for row, part in zip(outputs, own, strict=True))
        return found

    def _train_stack(self, trainings: Sequence[Training]) -> Tensor:
        self.model.train()
        images, targets, plans = _gather(trainings)  # (B, n, C, H, W) uint8, (B, n), (B, steps, batch)
        anchors = torch.stack([training.start for training in trainings])  # (B, P)
        stack = anchors.clone()
        optimizer = _OPTIMIZERS[self.hyperparams.optimizer](self.hyperparams, stack[:, : self.layout.num_parameters])
        grads = torch.zeros_like(stack)
        steps = [len(training.plan) for training in trainings]
        alive = len(trainings)
        for step in range(steps[0]):
            while steps[alive - 1] <= step:
                alive -= 1
            rows = torch.arange(alive, device=stack.device)[:, None]
            batch = plans[:alive, step]
            inputs = to_input(images[rows, batch], self.dtype)  # (B, batch, C, H, W)
            self._gradients(stack[:alive], grads[:alive], inputs, targets[rows, batch])
            optimizer.step(anchors[:alive], grads[:alive], step + 1)
            for name in self._frozen:  # neither decay nor the proximal term may move what is not trained
                self.layout.views(stack)[name].copy_(self.layout.views(anchors)[name])
        return stack

    def _gradients(self, stack: Tensor, grads: Tensor, inputs: Tensor, targets: Tensor) -> None:
        """Write the gradient of every client's loss into its row of `grads`; buffers change in place."""
        views = self.layout.views(stack)
        slots = self.layout.views(grads)
        for name in self._learned:
            views[name] = views[name].detach().requires_grad_()
        outputs = vmap(self._call)(views, inputs)
        losses = vmap(self.loss)(outputs, targets)  # (B,); rows do not touch: the sum's gradient is each row's own
        found = torch.autograd.grad(losses.sum(), [views[name] for name in self._learned], materialize_grads=True)
        for name, gradient in zip(self._learned, found, strict=True):
            slots[name].copy_(gradient)

    def _call(self, views: Views, inputs: Tensor) -> Any:
        return functional_call(self.model, views, (inputs,))


class _Adam:
    """torch.optim.Adam on rows, with the proximal gradient added on the way."""

    def __init__(self, hyperparams: Hyperparams, parameters: Tensor) -> None:
        self.hyperparams = hyperparams
        self.parameters = parameters  # (B, P)
        self.first = torch.zeros_like(parameters)
        self.second = torch.zeros_like(parameters)

    def step(self, anchors: Tensor, grads: Tensor, step: int) -> None:
        size = self.parameters.shape[1]
        rows = slice(0, len(grads))
        parameters, anchors, grads = self.parameters[rows], anchors[:, :size], grads[:, :size]
        grads.add_(parameters - anchors, alpha=self.hyperparams.proximal_strength)
        grads.add_(parameters, alpha=self.hyperparams.weight_decay)
        first = self.first[rows].lerp_(grads, 0.1)
        second = self.second[rows].mul_(0.999).addcmul_(grads, grads, value=0.001)
        scale = (second.sqrt() / (1 - 0.999**step) ** 0.5).add_(1e-8)
        parameters.addcdiv_(first, scale, value=-self.hyperparams.learning_rate / (1 - 0.9**step))


class _SGD:
    """torch.optim.SGD on rows, with the proximal gradient added on the way."""

    def __init__(self, hyperparams: Hyperparams, parameters: Tensor) -> None:
        self.hyperparams = hyperparams
        self.parameters = parameters  # (B, P)
        self.momentum = torch.zeros_like(parameters)

    def step(self, anchors: Tensor, grads: Tensor, step: int) -> None:
        size = self.parameters.shape[1]
        rows = slice(0, len(grads))
        parameters, anchors, grads = self.parameters[rows], anchors[:, :size], grads[:, :size]
        grads.add_(parameters - anchors, alpha=self.hyperparams.proximal_strength)
        grads.add_(parameters, alpha=self.hyperparams.weight_decay)
        momentum = self.momentum[rows].mul_(self.hyperparams.momentum).add_(grads)
        parameters.add_(momentum, alpha=-self.hyperparams.learning_rate)


_OPTIMIZERS: dict[str, Callable[[Hyperparams, Tensor], _Adam | _SGD]] = {"adam": _Adam, "sgd": _SGD}


def _gather(trainings: Sequence[Training]) -> tuple[Tensor, Tensor, Tensor]:
    """The data of a stack, short rows filled up: images (B, n, ...) uint8, targets (B, n), plans (B, steps, batch)."""
    parts = fetch_all([(training.federation, training.samples) for training in trainings])
    pad = nn.utils.rnn.pad_sequence
    return (
        pad([images for images, _ in parts], batch_first=True),
        pad([targets for _, targets in parts], batch_first=True),
        pad([training.plan for training in trainings], batch_first=True).to(trainings[0].start.device),
    )
