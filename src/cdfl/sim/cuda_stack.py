"""Stacks on a GPU: every training step is one CUDA graph, so that the GPU never waits for Python.

A graph has fixed shapes and addresses, so there is one for each of a few stack heights and batch sizes, over tensors
that are allocated once. Rows between the clients still in training and the next height are computed and not kept.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from cdfl.core import Loss, TrainingSettings
from cdfl.sim.engine import DataSet, Training
from cdfl.sim.kernels import cross_entropy as stacked_cross_entropy
from cdfl.sim.stack import Rows, Stack, sizes_of
from cdfl.sim.stacked_network import runs_of_learned

# Small stacks are common and get a graph of their own height; above that, a few rows more cost little.
HEIGHTS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128)


class GraphStack(Stack):
    """Trains stacks by replaying CUDA graphs."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        settings: TrainingSettings,
        dtype: torch.dtype = torch.float32,
        width: int = 64,
        precision: str = "tf32",
        together: int = 2**17,
        *,
        one_by_one: bool = False,
    ) -> None:
        super().__init__(model, loss, settings, dtype, width, precision, one_by_one=one_by_one)
        self.together = together
        if not one_by_one:  # a step of the optimiser for each tensor costs less than first copying gradients together
            self.network.runs = runs_of_learned(model, self.layout, apart=True)
        self._spaces: dict[int, Space] = {}  # by batch size

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """The local models (B, P)."""
        with tensor_cores(self.network.precision):
            return super().train(trainings)

    def outputs(self, models: Tensor, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """What each model (B, P) says."""
        with tensor_cores(self.network.precision):
            return super().outputs(models, inputs)

    def let_go(self) -> None:
        """Free the tensors and graphs."""
        self._spaces.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _train_stack(self, trainings: Sequence[Training]) -> Tensor:
        batch = trainings[0].plan.shape[1]
        space = self._spaces.get(batch)
        if space is None or not space.holds(trainings):
            space = self._spaces[batch] = Space(self, trainings, space)
        counts = [len(training.plan) for training in trainings]
        alive, heights = len(trainings), []
        for step in range(counts[0]):
            while counts[alive - 1] <= step:
                alive -= 1
            heights.append(space.height(alive))
        space.prepare(sorted(set(heights)))
        space.rows.load(trainings)
        for height in heights:
            space.graphs[height].replay()
        return space.rows.models[: len(trainings)].clone()

    def step_where_active(self, rows: Rows, height: int) -> None:
        """One step of the first `height` rows that still have steps to take."""
        self._step(rows, height, some=True)


class Space:
    """Tensors at fixed addresses for stacks of one batch size, and the graphs that work on them."""

    def __init__(self, stack: GraphStack, trainings: Sequence[Training], old: "Space | None") -> None:
        self.stack = stack
        samples, steps = sizes_of(trainings)
        height = next((h for h in HEIGHTS if h >= len(trainings)), len(trainings))
        if old is not None:
            height, samples, steps = max(height, old.height_held), max(samples, old.samples), max(steps, old.steps)
        # Room for the next stack, whose clients may have more data.
        self.height_held: int = height
        self.samples: int = _roomy(samples)
        self.steps: int = _roomy(steps)
        channels, chain = trainings[0].federation.input_shape[0], stack.network.chain_for(trainings[0].start)
        channels = channels if chain is None else chain.channels(channels)
        self.rows = Rows(self.height_held, self.samples, self.steps, trainings[0], stack.dtype, channels)
        self.graphs: dict[int, torch.cuda.CUDAGraph | Eager] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.rows.limits.is_cuda else None

    def holds(self, trainings: Sequence[Training]) -> bool:
        """Is there room for these?"""
        samples, steps = sizes_of(trainings)
        return len(trainings) <= self.height_held and samples <= self.samples and steps <= self.steps

    def height(self, alive: int) -> int:
        """The height of the graph for so many rows."""
        return min(next((height for height in HEIGHTS if height >= alive), alive), self.height_held)

    def prepare(self, heights: Sequence[int]) -> None:
        """Make the graphs that are missing; this computes on whatever the tensors hold."""
        for height in heights:
            if height in self.graphs:
                continue
            step = partial(self.stack.step_where_active, self.rows, height)
            self.rows.limits.zero_()
            self.graphs[height] = Eager(step) if self._pool is None else captured(step, self._pool)


def _roomy(size: int) -> int:
    return -(-size * 5 // 4 // 64) * 64


class ProxyLosses:
    """Proxy sets in one tensor, so that K models meet K sets at once; shorter sets are filled up."""

    def __init__(self, stack: Stack, sets: Sequence[DataSet]) -> None:
        self.stack = stack
        last = [inputs.permute(0, 2, 3, 1) if inputs.ndim == 4 else inputs for inputs, _ in sets]
        inputs = pad_sequence(last, batch_first=True)  # (K, n, H, W, C)
        chain = stack.network.chain_for(inputs)
        if chain is not None:
            inputs = pad(inputs, (0, chain.channels(inputs.shape[4]) - inputs.shape[4]))
        self.inputs = inputs.permute(0, 1, 4, 2, 3) if inputs.ndim == 5 else inputs  # channels last in memory
        # (K, n); -1: filling
        self.targets = pad_sequence([targets for _, targets in sets], batch_first=True, padding_value=-1)

    def losses(self, models: Tensor, wanted: Tensor | None = None) -> Tensor:
        """The loss of each model (K, P) on the set of its own cluster, (K,), or anything where none is wanted (K,).

        It waits for nothing, not even to see which are wanted.
        """
        return stacked_cross_entropy(self.stack.network.predict(models, self.inputs, wanted), self.targets)


def captured(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Do some work twice, and record it the third time."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles kernels and lets libraries allocate, as a recording requires
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph


class Eager:
    """What a graph does, step by step: the same path where there is no GPU."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def replay(self) -> None:
        """Do the work."""
        self.work()


@contextmanager
def tensor_cores(precision: str) -> Iterator[None]:
    """Let float32 products be rounded to TF32 on the way in, unless full float32 was asked for."""
    matmul, conv = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, conv
