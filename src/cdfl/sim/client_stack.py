"""Train clients as one tensor program: B networks of one shape, each with its own weights and data.

Row b of every tensor belongs to client b and no operation mixes rows, so a row has the result of training it alone, up
to rounding. Clients are sorted by their number of steps. Finished clients leave at the end of the stack, and the others
continue in a shorter one. No batch is padded: all batches of a stack have the same size, and trainings with another
batch size go into another stack.

A single row takes another path through torch, with other rounding. So the last row of a stack is not left alone: a
finished row is computed along with it, and stays as it is. Stacks of two rows and more then give the same bits for a
client, whatever the other rows, for the networks of the tests.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cdfl.core import Layout, Loss, TrainingSettings
from cdfl.sim.engine import DataSet, Training, fetch_all, losses_of, no_progress
from cdfl.sim.kernels import adam_step_, aligned, sgd_step_, take_batch
from cdfl.sim.kernels.gather import take_batch_torch
from cdfl.sim.stacked_network import StackedNetwork


class Rows:
    """The tensors of a stack under training: row b is client b.

    `channels` is the number of channels that images (C, H, W) are stored with, channels last; None for other inputs.
    """

    def __init__(
        self, height: int, samples: int, steps: int, like: Training, dtype: torch.dtype, channels: int | None
    ) -> None:
        device, size = like.start.device, len(like.start)
        self.images = channels is not None
        shape, target_shape = like.federation.input_shape, like.federation.target_shape
        stored = shape if channels is None else (*shape[1:], channels)
        input_dtype, target_dtype = like.federation.dtypes(dtype)
        wide = torch.zeros(4, height, aligned(size), dtype=dtype, device=device)
        self.anchors: Tensor = wide[0, :, :size]  # (B, P) the models that the clients received
        self.models: Tensor = wide[1, :, :size]  # (B, P)
        self.first: Tensor = wide[2, :, :size]  # (B, P) state of the optimiser
        self.second: Tensor = wide[3, :, :size]
        self.inputs = torch.zeros(height, samples, *stored, dtype=input_dtype, device=device)  # (B, n, ...)
        self.targets = torch.zeros(height, samples, *target_shape, dtype=target_dtype, device=device)  # (B, n, ...)
        # The kernel copies rows of images with one target each.
        self._take = take_batch if self.images and not target_shape else take_batch_torch
        self.plans = torch.zeros(height, steps, like.plan.shape[1], dtype=torch.int64, device=device)
        self.limits = torch.zeros(height, dtype=torch.int64, device=device)  # (B,) steps to take
        self.step = torch.zeros_like(self.limits)  # (B,) steps taken

    @classmethod
    def of(cls, trainings: Sequence[Training], dtype: torch.dtype, *, images: bool) -> "Rows":
        """Allocate just enough for these trainings."""
        channels = trainings[0].federation.input_shape[0] if images else None
        return cls(len(trainings), *sizes_of(trainings), trainings[0], dtype, channels)

    def load(self, trainings: Sequence[Training]) -> None:
        """Load trainings into the first rows; the other rows have no steps to take."""
        parts = fetch_all([(training.federation, training.samples) for training in trainings], self.models.dtype)
        count, steps = len(trainings), sizes_of(trainings)[1]
        plans = torch.zeros(count, steps, self.plans.shape[2], dtype=torch.int64)  # on the CPU, to copy it once
        limits = torch.zeros(len(self.limits), dtype=torch.int64)
        for state in (self.step, self.first, self.second):
            state.zero_()
        for row, (training, (inputs, targets)) in enumerate(zip(trainings, parts, strict=True)):
            plans[row, : len(training.plan)] = training.plan
            limits[row] = len(training.plan)
            if self.images:
                self.inputs[row, : len(inputs), ..., : inputs.shape[1]] = inputs.permute(0, 2, 3, 1)
            else:
                self.inputs[row, : len(inputs)] = inputs
            self.targets[row, : len(targets)] = targets
        self.plans[:count, :steps] = plans.to(self.plans.device)
        self.limits.copy_(limits)
        starts = torch.stack([training.start for training in trainings])
        self.models[:count], self.anchors[:count] = starts, starts

    def batch(self, alive: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next batch of the first rows, and which rows still have steps to take, (B,).

        Images are (B, batch, C, H, W), channels last in memory; targets are (B, batch, ...).
        """
        tensors = (self.inputs, self.targets, self.plans, self.step, self.limits)
        inputs, targets, active = self._take(*(tensor[:alive] for tensor in tensors))
        return inputs.permute(0, 1, 4, 2, 3) if self.images else inputs, targets, active


def sizes_of(trainings: Sequence[Training]) -> tuple[int, int]:
    """Return the most samples and the most steps of any training."""
    return max(len(training.samples) for training in trainings), max(len(training.plan) for training in trainings)


class Stack:
    """Trains up to `width` clients at once; works for any network that `torch.func.vmap` can handle."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        settings: TrainingSettings,
        dtype: torch.dtype = torch.float32,
        width: int = 64,
        precision: str = "float32",
        *,
        one_by_one: bool = False,
        images: bool = True,
    ) -> None:
        self.layout = Layout.of(model)
        self.images = images  # inputs are (n, C, H, W), and the network takes them channels last
        self.network = StackedNetwork(
            copy.deepcopy(model), self.layout, loss, precision, one_by_one=one_by_one, images=images
        )
        self.settings = settings
        self.dtype = dtype
        self.width = width
        self.together = 2**16  # samples evaluated at once
        self.on_step: Callable[[int], Any] = no_progress

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """Train, and return the local models (B, P)."""
        result = torch.empty(len(trainings), self.layout.size, dtype=self.dtype, device=trainings[0].start.device)
        by_batch: dict[int, list[int]] = defaultdict(list)
        for place, training in enumerate(trainings):
            by_batch[training.plan.shape[1]].append(place)
        for places in by_batch.values():
            places.sort(key=lambda place: -len(trainings[place].plan))
            while places:
                chunk = places[: self.width - (len(places) == self.width + 1 > 3)]  # leaves none alone
                try:
                    result[chunk] = self._train_stack([trainings[place] for place in chunk])
                except torch.OutOfMemoryError:
                    if len(chunk) == 1:
                        raise
                    self.width = len(chunk) // 2  # for good: the next stack would not fit either
                    self.free_memory()
                    continue
                del places[: len(chunk)]
        return result

    def free_memory(self) -> None:
        """Free what is kept between stacks."""

    def outputs(self, models: Tensor, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of each model (B, P); inputs of different lengths are padded."""
        longest = len(inputs) if isinstance(inputs, Tensor) else max(len(own) for own in inputs)
        count = max(1, self.together // max(1, longest))
        found: list[Tensor] = []
        for first in range(0, len(models), count):
            stack = models[first : first + count]
            if isinstance(inputs, Tensor):
                found.extend(self._predict(stack, inputs.expand(len(stack), *inputs.shape)))
            else:
                own = inputs[first : first + count]
                same = all(len(part) == len(own[0]) for part in own)  # then padding is not needed
                filled = torch.stack(list(own)) if same else nn.utils.rnn.pad_sequence(list(own), batch_first=True)
                outputs = self._predict(stack, filled)
                found.extend(row[: len(part)] for row, part in zip(outputs, own, strict=True))
        return found

    def _predict(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs (B, n, ...) of models (B, P) on inputs (B, n, ...)."""
        return self.network.predict(models, inputs)

    def evaluate(self, models: Tensor, clusters: Tensor, sets: Sequence[DataSet]) -> Tensor:
        """Return the loss of each model (n, P) on the data set of its cluster (n,)."""
        return losses_of(self, self.network.loss, models, clusters, sets)

    def _train_stack(self, trainings: Sequence[Training]) -> Tensor:
        rows = Rows.of(trainings, self.dtype, images=self.images)
        rows.load(trainings)
        alive = len(trainings)
        least = min(2, alive)
        for step in range(len(trainings[0].plan)):
            while len(trainings[alive - 1].plan) <= step and alive > least:
                alive -= 1
            is_finished = len(trainings[alive - 1].plan) <= step  # the last row
            self._step(rows, alive, some=is_finished)
            self.on_step(alive - is_finished)
        return rows.models

    def _step(self, rows: Rows, alive: int, *, some: bool = False) -> None:
        """Take one step with the first `alive` rows; with `some`, only with those that have steps left."""
        inputs, targets, unfinished = rows.batch(alive)
        active = unfinished if some else None
        models = rows.models[:alive]
        statistics = models[:, self.layout.num_parameters :]  # of batch norm; the forward pass changes them in place
        keep = active is not None and statistics.shape[1] > 0
        before = statistics.clone() if keep else statistics
        gradients = self.network.gradients(models, inputs, targets)
        if active is not None and keep:
            statistics.copy_(torch.where(active[:, None], statistics, before))
        for columns, gradient in gradients:
            self._descend(rows, slice(0, alive), columns, gradient, active)
        rows.step[:alive] += 1

    def _descend(self, rows: Rows, alive: slice, columns: slice, gradient: Tensor, active: Tensor | None) -> None:
        """Take the optimiser's step in some columns."""
        settings = self.settings
        models, anchors, first, second = (
            tensor[alive, columns] for tensor in (rows.models, rows.anchors, rows.first, rows.second)
        )
        options: Any = {
            "lr": settings.learning_rate,
            "anchors": anchors,
            "active": active,
            "rho": settings.proximal_strength,
            "weight_decay": settings.weight_decay,
        }
        if settings.optimizer == "adam":
            adam_step_(models, gradient, first, second, rows.step[alive], **options)
        else:
            sgd_step_(models, gradient, first, momentum=settings.momentum, **options)
