"""Stacks on a GPU: every training step is one CUDA graph, so that the GPU never waits for Python.

A graph has fixed shapes and addresses, so there is one for each of a few stack heights and batch sizes, over tensors
that are allocated once. Rows above the clients still in training are computed and discarded.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from cdfl.core import Loss, TrainingSettings
from cdfl.sim.client_stack import Rows, Stack, sizes_of
from cdfl.sim.engine import DataSet, Training
from cdfl.sim.kernels import cross_entropy as stacked_cross_entropy
from cdfl.sim.stacked_network import STREAMS, StackedNetwork, learned_pieces

logger = logging.getLogger("cdfl.sim")

# Small stacks are common, so each height up to 16 has its graph; in higher stacks a few extra rows cost little.
HEIGHTS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128)
PIECE = 1000  # inputs that a big network sees at once in evaluation
MOST_PREDICTIONS = 4 * STREAMS  # graphs that are kept, each with the memory that it needs


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
        images: bool = True,
    ) -> None:
        super().__init__(model, loss, settings, dtype, width, precision, one_by_one=one_by_one, images=images)
        self.together = together
        if not one_by_one:  # an optimiser step for each tensor is cheaper than joining the gradients first
            self.network.pieces = learned_pieces(model, self.layout, apart=True)
        self._buffers: dict[int, GraphBuffers] = {}  # by batch size
        self._predictions: dict[tuple[int, torch.Size], Prediction] = {}  # of big networks: (stream, shape of inputs)

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """Train, and return the local models (B, P)."""
        with tensor_cores(self.network.precision):
            return super().train(trainings)

    def outputs(self, models: Tensor, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of each model (B, P)."""
        with tensor_cores(self.network.precision):
            return super().outputs(models, inputs)

    def free_memory(self) -> None:
        """Free the tensors and graphs."""
        self._buffers.clear()
        self._predictions.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _predict(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs of models (B, P); those of a big network by graphs: a host launches kernels too slowly."""
        if not self.network.one_by_one:
            return super()._predict(models, inputs)
        count = len(models)
        tasks = [(models[row], part[row]) for part in inputs.split(PIECE, dim=1) for row in range(count)]
        keys = [(place % STREAMS, own.shape) for place, (_, own) in enumerate(tasks)]
        if len(self._predictions.keys() | keys) > MOST_PREDICTIONS:
            self._predictions.clear()
        for key, task in zip(keys, tasks, strict=True):
            if key not in self._predictions:
                self._predictions[key] = Prediction(self.network, *task)
        places = self.network.side_by_side(len(tasks), models.device)
        found = [self._predictions[keys[place]](*tasks[place]) for place in places]
        return torch.stack([torch.cat(found[row::count]) for row in range(count)])

    def _train_stack(self, trainings: Sequence[Training]) -> Tensor:
        batch = trainings[0].plan.shape[1]
        buffers = self._buffers.get(batch)
        if buffers is None or not buffers.holds(trainings):
            buffers = self._buffers[batch] = GraphBuffers(self, trainings, buffers)
        counts = [len(training.plan) for training in trainings]
        alive, heights = len(trainings), []
        for step in range(counts[0]):
            while counts[alive - 1] <= step:
                alive -= 1
            heights.append(buffers.height(alive))
        buffers.prepare(sorted(set(heights)))
        buffers.rows.load(trainings)
        for height in heights:
            buffers.graphs[height].replay()
            self.on_step(height)
        return buffers.rows.models[: len(trainings)].clone()

    def step_where_active(self, rows: Rows, height: int) -> None:
        """Take one step with those of the first `height` rows that have steps left."""
        self._step(rows, height, some=True)


class GraphBuffers:
    """Tensors at fixed addresses for stacks of one batch size, and the graphs that work on them."""

    def __init__(self, stack: GraphStack, trainings: Sequence[Training], old: "GraphBuffers | None") -> None:
        self.stack = stack
        samples, steps = sizes_of(trainings)
        height = next((h for h in HEIGHTS if h >= len(trainings)), len(trainings))
        if old is not None:
            height, samples, steps = max(height, old.height_held), max(samples, old.samples), max(steps, old.steps)
        # Headroom for the next stack, whose clients may have more data.
        self.height_held: int = height
        self.samples: int = _with_headroom(samples)
        self.steps: int = _with_headroom(steps)
        channels = trainings[0].federation.input_shape[0] if stack.images else None
        kernels = stack.network.kernel_network_for(trainings[0].start)
        channels = channels if kernels is None or channels is None else kernels.channels(channels)
        self.rows = Rows(self.height_held, self.samples, self.steps, trainings[0], stack.dtype, channels)
        self.graphs: dict[int, torch.cuda.CUDAGraph | Eager] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.rows.limits.is_cuda else None

    def holds(self, trainings: Sequence[Training]) -> bool:
        """Return whether these trainings fit."""
        samples, steps = sizes_of(trainings)
        return len(trainings) <= self.height_held and samples <= self.samples and steps <= self.steps

    def height(self, alive: int) -> int:
        """Return the height of the graph for this many rows."""
        return min(next((height for height in HEIGHTS if height >= alive), alive), self.height_held)

    def prepare(self, heights: Sequence[int]) -> None:
        """Capture the missing graphs; capturing computes on the present contents of the tensors."""
        for height in heights:
            if height in self.graphs:
                continue
            step = partial(self.stack.step_where_active, self.rows, height)
            self.rows.limits.zero_()
            self.graphs[height] = capture(step, self._pool)


def _with_headroom(size: int) -> int:
    return -(-size * 5 // 4 // 64) * 64


class Prediction:
    """The graph of a network's outputs for inputs of one shape. Several of them can run at the same time."""

    def __init__(self, network: StackedNetwork, model: Tensor, inputs: Tensor) -> None:
        self.network = network
        self.model, self.inputs = model.clone(), inputs.clone()
        self.outputs = torch.empty(0)
        self._graph = capture(self._compute, torch.cuda.graph_pool_handle() if model.is_cuda else None)

    def __call__(self, model: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs (n, ...) of a model (P,) on inputs (n, ...)."""
        self.model.copy_(model)
        self.inputs.copy_(inputs)
        self._graph.replay()
        return self.outputs.clone()

    def _compute(self) -> None:
        self.outputs = self.network.predict(self.model[None], self.inputs[None])[0]


class ProxyLosses:
    """Proxy sets in one tensor, to evaluate K models on K sets at once; shorter sets are padded."""

    def __init__(self, stack: Stack, sets: Sequence[DataSet]) -> None:
        self.stack = stack
        last = [inputs.permute(0, 2, 3, 1) if stack.images else inputs for inputs, _ in sets]
        inputs = pad_sequence(last, batch_first=True)  # (K, n, H, W, C)
        kernels = stack.network.kernel_network_for(inputs)
        if kernels is not None:
            inputs = pad(inputs, (0, kernels.channels(inputs.shape[4]) - inputs.shape[4]))
        self.inputs = inputs.permute(0, 1, 4, 2, 3) if stack.images else inputs  # channels last in memory
        # (K, n); -1: padding
        self.targets = pad_sequence([targets for _, targets in sets], batch_first=True, padding_value=-1)

    def losses(self, models: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Return the loss of each model (K, P) on the proxy set of its cluster, (K,); undefined where not `wanted`.

        `wanted` stays on the GPU: nothing here waits for the device.
        """
        return stacked_cross_entropy(self.stack.network.predict(models, self.inputs, wanted), self.targets)


def capture(work: Callable[[], None], pool: Any) -> "torch.cuda.CUDAGraph | Eager":
    """Capture work in a graph. Work that cannot be captured, e.g. because it waits for the device, runs as it is.

    `pool` is None where there is no GPU.
    """
    if pool is None:
        return Eager(work)
    try:
        return _captured(work, pool)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        torch.cuda.synchronize()
        reason = str(error).partition("\n")[0]
        logger.warning("this network cannot be captured in a CUDA graph (%s); it runs without one, slower", reason)
        return Eager(work)


def _captured(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Run `work` twice, and capture the third run in a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles kernels and lets libraries allocate, which a capture cannot do
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph


class Eager:
    """Stands in for a graph where there is no GPU, or where the work cannot be captured."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def replay(self) -> None:
        """Run the work."""
        self.work()


@contextmanager
def tensor_cores(precision: str) -> Iterator[None]:
    """Allow TF32 in float32 products unless `precision` is "float32"."""
    matmul, conv = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, conv
