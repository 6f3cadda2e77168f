"""Train clients in parallel on CPU threads, for networks big enough to keep a core busy.

One core for each client is faster than all cores on one client, because cores do not wait for each other between
layers. Convolutions are fastest on channels-last images. Pooling comes before ReLU, and the memory of a step is reused
by the next one. The number of workers changes only rounding.
"""

import copy
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cdfl.core import Layout, Loss, TrainingSettings, client_update
from cdfl.core.proxy_sets import for_evaluation, in_pieces
from cdfl.device import torch_threads
from cdfl.malloc_options import keep_freed_memory
from cdfl.sim.engine import DataSet, Training, losses_of, no_progress

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Runs as many trainings at a time as there are cores, each in one thread."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        settings: TrainingSettings,
        dtype: torch.dtype = torch.float32,
        precision: str = "float32",
        count: int | None = None,
        *,
        random: bool = False,
        images: bool = True,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.images = images  # inputs are (n, C, H, W), and the network takes them channels last
        if images:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        pool_first(self.model)
        self.layout = Layout.of(model)
        self.loss = loss
        self.settings = settings
        self.dtype = dtype
        self.precision = precision
        self.count = count or os.cpu_count() or 1
        self.on_step: Callable[[int], Any] = no_progress
        self._pool = ThreadPoolExecutor(self.count)
        self._mine = threading.local()  # a copy of the network for each worker, since calls write weights into it
        self._seeding = threading.Lock()  # torch has one random state for all threads
        self._random = random  # the network draws random numbers in training, so trainings run one at a time
        keep_freed_memory()

    def train(self, trainings: Sequence[Training]) -> Tensor:
        """Train, and return the local models (B, P)."""
        over = threading.Event()
        try:
            return torch.stack(self._side_by_side(lambda training: self._train_one(training, over), trainings))
        finally:
            over.set()  # after an interrupt this stops the other threads, so that the program can end

    def outputs(self, models: Tensor, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of each model (B, P)."""
        own = [inputs] * len(models) if isinstance(inputs, Tensor) else inputs
        return self._side_by_side(self._predict, list(zip(models, own, strict=True)))

    def evaluate(self, models: Tensor, clusters: Tensor, sets: Sequence[DataSet]) -> Tensor:
        """Return the loss of each model (n, P) on the data set of its cluster (n,)."""
        return losses_of(self, self.loss, models, clusters, sets)

    def _train_one(self, training: Training, over: threading.Event) -> Tensor:
        inputs, targets = training.federation.ready(training.samples, self.dtype)
        inputs = self._laid_out(inputs)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in training.plan:
                if over.is_set():
                    return
                yield inputs[batch], targets[batch]
                self.on_step(1)

        with self._noise(training.noise_seed), self._cast():
            return client_update(self._copy(), training.start, batches(), self.loss, self.settings)

    def _predict(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        vector, inputs = pair
        inputs = self._laid_out(inputs)
        if not hasattr(self._mine, "evaluated"):
            self._mine.evaluated = for_evaluation(self.model).eval()
        model, weights = self._mine.evaluated, self.layout.views(vector)
        with torch.no_grad(), self._cast():
            outputs: Tensor = in_pieces(lambda piece: functional_call(model, weights, (piece,)), inputs)
        return outputs.to(self.dtype)

    def _laid_out(self, inputs: Tensor) -> Tensor:
        """Return images (n, C, H, W) channels last, and other inputs as they are."""
        return inputs.to(memory_format=torch.channels_last) if self.images else inputs

    def _copy(self) -> nn.Module:
        if not hasattr(self._mine, "model"):
            self._mine.model = copy.deepcopy(self.model)
        model: nn.Module = self._mine.model
        return model

    def _cast(self) -> "torch.autocast | nullcontext[None]":
        device = next(self.model.parameters()).device.type
        if self.precision != "bfloat16":
            return nullcontext()
        # No cache: it would keep the rounded weights of the first step for the whole training.
        return torch.autocast(device, torch.bfloat16, cache_enabled=False)

    @contextmanager
    def _noise(self, seed: int) -> Iterator[None]:
        if not self._random:
            yield
            return
        with self._seeding, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            yield

    def _side_by_side(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if self.count == 1 or len(items) == 1:  # let torch use all cores
            return [work(item) for item in items]
        with torch_threads(1):
            return list(self._pool.map(work, items))


def pool_first(model: nn.Module) -> None:
    """In an `nn.Sequential`, swap ReLU and the max pooling after it: ReLU then has fewer numbers to process.

    Outputs and gradients stay the same, except for the sign of zeros. Layers of other modules and layers with hooks
    stay in place.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    >>> pool_first(net)
    >>> [type(layer).__name__ for layer in net]
    ['Conv2d', 'MaxPool2d', 'ReLU']
    """
    if type(model) is not nn.Sequential or _has_hooks(model):
        return
    for layer in model:
        pool_first(layer)
    for place in range(len(model) - 1):
        relu, pool = model[place], model[place + 1]
        if type(relu) is not nn.ReLU or type(pool) is not nn.MaxPool2d or pool.return_indices:
            continue
        if not _has_hooks(relu) and not _has_hooks(pool):
            model[place], model[place + 1] = pool, relu


def _has_hooks(layer: nn.Module) -> bool:
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(vars(layer).get(name) for name in hooks)
