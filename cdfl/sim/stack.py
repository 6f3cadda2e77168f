"""Clients as one tensor program: B networks of one shape, each with its own weights and data, trained together.

Row b of every tensor belongs to client b and no operation mixes rows, so a row's result is that of training it alone,
up to rounding. Clients are sorted by their number of steps; those that are done leave at the end of the stack, and
the others go on in a shorter one. No batch is padded: all batches of a stack have the same size, and a training with
another batch size goes into another stack.
"""

import copy
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from cdfl.core import Hyperparams, Layout, Loss
from cdfl.data import to_input
from cdfl.sim.engine import Training, fetch_all
from cdfl.sim.kernels import adam_step_, sgd_step_
from cdfl.sim.layers import StackedNetwork


class Rows:
    """The tensors of a stack under training: row b is client b."""

    def __init__(self, trainings: Sequence[Training], dtype: torch.dtype) -> None:
        starts = torch.stack([training.start for training in trainings])
        pad, device = nn.utils.rnn.pad_sequence, starts.device
        parts = fetch_all([(training.federation, training.samples) for training in trainings])
        self.anchors = starts.to(dtype)  # (B, P) what each client received
        self.models = self.anchors.clone()  # (B, P)
        self.first = torch.zeros_like(self.anchors)  # (B, P) state of the optimiser
        self.second = torch.zeros_like(self.anchors)
        self.images = pad([images.permute(0, 2, 3, 1) for images, _ in parts], batch_first=True)  # (B, n, H, W, C)
        self.targets = pad([targets for _, targets in parts], batch_first=True)  # (B, n)
        self.plans = pad([training.plan for training in trainings], batch_first=True).to(device)  # (B, steps, batch)
        self.limits = torch.tensor([len(training.plan) for training in trainings]).to(device)  # (B,)
        self.step = torch.zeros_like(self.limits)  # (B,) steps taken
        self.numbers = torch.arange(len(trainings), device=device)  # (B,)

    def batch(self, alive: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The next batch of the first rows: inputs (B, batch, C, H, W), channels last in memory, and targets."""
        rows = self.numbers[:alive]
        at = self.step[:alive].clamp(max=self.plans.shape[1] - 1)
        chosen = self.plans[rows, at]  # (B, batch)
        images = self.images[rows[:, None], chosen]
        return to_input(images, dtype).permute(0, 1, 4, 2, 3), self.targets[rows[:, None], chosen]


class Stack:
    """Trains up to `width` clients at once, for any network that `torch.func.vmap` can handle."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        hyperparams: Hyperparams,
        dtype: torch.dtype = torch.float32,
        width: int = 64,
        precision: str = "float32",
    ) -> None:
        self.layout = Layout.of(model)
        self.network = StackedNetwork(copy.deepcopy(model), self.layout, loss, precision)
        self.hyperparams = hyperparams
        self.dtype = dtype
        self.width = width
        self.together = 2**16  # images that are looked at together when nothing is trained
        self._learned = _runs_of_learned(model, self.layout)

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """The local models (B, P)."""
        result = torch.empty(len(trainings), self.layout.size, dtype=self.dtype, device=trainings[0].start.device)
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
        longest = len(inputs) if isinstance(inputs, Tensor) else max(len(own) for own in inputs)
        count = max(1, self.together // max(1, longest))
        found: list[Tensor] = []
        for first in range(0, len(models), count):
            stack = models[first : first + count]
            if isinstance(inputs, Tensor):
                found.extend(self.network.look(stack, inputs.expand(len(stack), *inputs.shape)))
            else:
                own = inputs[first : first + count]
                filled = nn.utils.rnn.pad_sequence(list(own), batch_first=True)
                outputs = self.network.look(stack, filled)
                found.extend(row[: len(part)] for row, part in zip(outputs, own, strict=True))
        return found

    def _train_stack(self, trainings: Sequence[Training]) -> Tensor:
        rows = Rows(trainings, self.dtype)
        alive = len(trainings)
        for step in range(len(trainings[0].plan)):
            while len(trainings[alive - 1].plan) <= step:
                alive -= 1
            self._step(rows, alive)
        return rows.models

    def _step(self, rows: Rows, alive: int, active: Tensor | None = None) -> None:
        """One step of the first `alive` rows; where `active` is given, those for which it is false stay as they are."""
        inputs, targets = rows.batch(alive, self.dtype)
        models = rows.models[:alive]
        statistics = models[:, self.layout.num_parameters :]
        before = None if active is None else statistics.clone()
        gradients = self.network.gradients(models, inputs, targets)  # batch statistics in `models` change in place
        if active is not None and before is not None:
            statistics.copy_(torch.where(active[:, None], statistics, before))
        settings = self.hyperparams
        pull, decay = settings.proximal_strength, settings.weight_decay
        rate, momentum, taken = settings.learning_rate, settings.momentum, rows.step[:alive]

        def adam(models: Tensor, learned: Tensor, first: Tensor, second: Tensor, anchors: Tensor) -> None:
            adam_step_(
                models, learned, first, second, taken,
                lr=rate, anchors=anchors, active=active, rho=pull, weight_decay=decay,
            )  # fmt: skip

        def sgd(models: Tensor, learned: Tensor, first: Tensor, second: Tensor, anchors: Tensor) -> None:
            sgd_step_(
                models, learned, first,
                lr=rate, anchors=anchors, active=active, rho=pull, momentum=momentum, weight_decay=decay,
            )  # fmt: skip

        for start, stop, names in self._learned:
            columns = slice(start, stop)
            learned = torch.cat([gradients[name].flatten(1) for name in names], dim=1)
            anchors, first = rows.anchors[:alive, columns], rows.first[:alive, columns]
            step = adam if settings.optimizer == "adam" else sgd
            step(models[:, columns], learned, first, rows.second[:alive, columns], anchors)
        rows.step[:alive] += 1


def _runs_of_learned(model: nn.Module, layout: Layout) -> list[tuple[int, int, list[str]]]:
    """The columns of a stack that are trained, as runs (start, stop, names); frozen parameters lie between them."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    sizes = [shape.numel() for shape in layout.shapes]
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    columns = zip(layout.names, sizes, ends, strict=True)
    runs = []
    for learned, group in groupby(columns, key=lambda column: column[0] in trained):
        members = list(group)
        if learned:
            runs.append((members[0][2] - members[0][1], members[-1][2], [name for name, _, _ in members]))
    return runs
