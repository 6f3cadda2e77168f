"""Stacks on a GPU: every training step is one CUDA graph, so that the GPU never waits for Python.

A graph has fixed shapes and addresses, so there is one for each of a few stack heights and batch sizes, over tensors
that are allocated once. Rows between the clients still in training and the next height are computed and not kept.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cdfl.core import Hyperparams, Loss
from cdfl.sim.engine import Training
from cdfl.sim.stack import Rows, Stack

HEIGHTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)


class GraphStack(Stack):
    """Trains stacks by replaying CUDA graphs."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        hyperparams: Hyperparams,
        dtype: torch.dtype = torch.float32,
        width: int = 64,
        precision: str = "tf32",
    ) -> None:
        super().__init__(model, loss, hyperparams, dtype, width, precision)
        self.together = 2**17
        self._spaces: dict[int, Space] = {}  # by batch size

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """The local models (B, P)."""
        with tensor_cores(self.network.precision):
            return super().train(trainings)

    def outputs(self, models: Tensor, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """What each model (B, P) says."""
        with tensor_cores(self.network.precision):
            return super().outputs(models, inputs)

    def _train_stack(self, trainings: Sequence[Training]) -> Tensor:
        rows = Rows(trainings, self.dtype)
        batch = rows.plans.shape[2]
        space = self._spaces.get(batch)
        if space is None or not space.holds(rows):
            space = self._spaces[batch] = Space(self, rows, space)
        counts = [len(training.plan) for training in trainings]
        alive, heights = len(trainings), []
        for step in range(counts[0]):
            while counts[alive - 1] <= step:
                alive -= 1
            heights.append(space.height(alive))
        space.prepare(sorted(set(heights)))
        space.load(rows)
        for height in heights:
            space.graphs[height].replay()
        return space.rows.models[: len(trainings)].clone()

    def step_where_active(self, rows: Rows, height: int) -> None:
        """One step of the first `height` rows that still have steps to take."""
        self._step(rows, height, active=rows.step[:height] < rows.limits[:height])


class Space:
    """Tensors at fixed addresses for stacks of one batch size, and the graphs that work on them."""

    def __init__(self, stack: GraphStack, wanted: Rows, old: "Space | None") -> None:
        self.stack = stack
        size = {name: tensor.shape for name, tensor in vars(wanted).items()}
        before = {name: tensor.shape for name, tensor in vars(old.rows).items()} if old else size
        self.rows: Rows = Rows.__new__(Rows)
        for name, tensor in vars(wanted).items():
            shape = [max(pair) for pair in zip(size[name], before[name], strict=True)]
            shape[0] = next((h for h in HEIGHTS if h >= shape[0]), shape[0])
            if name in ("images", "targets", "plans"):  # room for the next stack, whose clients may have more data
                shape[1] = -(-shape[1] * 5 // 4 // 64) * 64
            columns = shape[-1]
            if tensor.is_floating_point():  # rows that begin on 128 bytes: matrix units read them twice as fast
                shape[-1] = -(-columns // 32) * 32
            setattr(self.rows, name, tensor.new_zeros(shape)[..., :columns])
        self.rows.numbers = torch.arange(len(self.rows.limits), device=wanted.limits.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph | Eager] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.rows.limits.is_cuda else None

    def holds(self, rows: Rows) -> bool:
        """Is there room for these?"""
        pairs = ((tensor.shape, getattr(self.rows, name).shape) for name, tensor in vars(rows).items())
        return all(wanted <= there for ours, theirs in pairs for wanted, there in zip(ours, theirs, strict=True))

    def height(self, alive: int) -> int:
        """The height of the graph for so many rows."""
        return min(next((height for height in HEIGHTS if height >= alive), alive), len(self.rows.limits))

    def load(self, rows: Rows) -> None:
        """Copy a stack in; the rows above it have no steps to take."""
        self.rows.limits.zero_()
        for name, tensor in vars(rows).items():
            if name != "numbers":
                getattr(self.rows, name)[tuple(slice(0, side) for side in tensor.shape)].copy_(tensor)

    def prepare(self, heights: Sequence[int]) -> None:
        """Capture the graphs that are missing; this computes on whatever the tensors hold."""
        for height in heights:
            if height in self.graphs:
                continue
            if self._pool is None:
                self.graphs[height] = Eager(self, height)
                continue
            self.rows.limits.zero_()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # compiles kernels and lets libraries allocate, as capture requires
                for _ in range(2):
                    self.stack.step_where_active(self.rows, height)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self.stack.step_where_active(self.rows, height)
            self.graphs[height] = graph


class Eager:
    """What a graph does, step by step: the same path where there is no GPU."""

    def __init__(self, space: Space, height: int) -> None:
        self.space = space
        self.height = height

    def replay(self) -> None:
        """Take one step."""
        self.space.stack.step_where_active(self.space.rows, self.height)


@contextmanager
def tensor_cores(precision: str) -> Iterator[None]:
    """Let float32 products be rounded to TF32 on the way in, unless full float32 was asked for."""
    matmul, conv = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, conv
