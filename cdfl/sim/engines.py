"""Which engine for which network and device."""

from typing import Literal, get_args

from torch import nn

from cdfl.core import Hyperparams
from cdfl.sim.engine import Engines
from cdfl.sim.stack import Stack
from cdfl.sim.task import Task
from cdfl.sim.workers import Workers

Precision = Literal["float32", "tf32", "bfloat16"]

# Below this many operations for one batch to go forward, a CPU core spends its time between the operations,
# not in them, and clients are better trained as one stack. Measured: benchmarks/speed.py.
SMALL_BATCH_FLOPS = 50e6

# Above this many, one client fills a GPU by itself, and a stack would only take memory.
BIG_BATCH_FLOPS = 20e9


def make_engines(task: Task, *, precision: Precision = "float32", width: int | None = None) -> Engines:
    """The fastest engines we know for this network on this device."""
    hyperparams = task.hyperparams
    free = hyperparams.replace(proximal_strength=0.0)  # for pre-training: there is no earlier model to stay near to
    check_precision(precision)

    def stack(kind: type[Stack], settings: Hyperparams, height: int) -> Stack:
        return kind(task.model, task.loss, settings, task.dtype, width or height, precision)

    def workers(settings: Hyperparams) -> Workers:
        return Workers(task.model, task.loss, settings, task.dtype, precision)

    batch_flops = task.forward_flops * hyperparams.batch_size
    random = any(isinstance(part, nn.modules.dropout._DropoutNd) for part in task.model.modules())
    if random:  # every client draws its own random numbers, which one program for all of them cannot
        return Engines(workers(hyperparams), workers(free), workers(hyperparams))
    if task.device.type == "cuda":
        from cdfl.sim.cuda import GraphStack

        height = 1 if batch_flops > BIG_BATCH_FLOPS else 64
        trainer = stack(GraphStack, hyperparams, height)
        return Engines(trainer, stack(GraphStack, free, height), trainer, scores_together=64)
    if width is not None or (batch_flops < SMALL_BATCH_FLOPS and precision == "float32"):
        return Engines(stack(Stack, hyperparams, 64), stack(Stack, free, 64), workers(hyperparams))
    return Engines(workers(hyperparams), workers(free), workers(hyperparams))


def check_precision(precision: str) -> None:
    """Refuse a precision that does not exist."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {precision!r}; expected one of {', '.join(get_args(Precision))}")
