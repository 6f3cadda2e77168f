"""Which engine for which network and device."""

from typing import Literal, get_args

from cdfl.sim.engine import Engines
from cdfl.sim.stack import Stack
from cdfl.sim.task import Task
from cdfl.sim.workers import Workers

Precision = Literal["float32", "bfloat16"]

# Below this many operations for one batch to go forward, a CPU core spends its time between the operations,
# not in them, and clients are better trained as one stack. Measured: benchmarks/speed.py.
SMALL_BATCH_FLOPS = 50e6


def make_engines(task: Task, *, precision: Precision = "float32", width: int | None = None) -> Engines:
    """The fastest engines we know for this network on this device."""
    hyperparams = task.hyperparams
    free = hyperparams.replace(proximal_strength=0.0)  # for pre-training: there is no earlier model to stay near to
    check_precision(precision)
    network = task.model, task.loss
    if task.device.type == "cuda":
        from cdfl.sim.cuda import GraphStack

        stack = GraphStack(*network, hyperparams, task.dtype, width or 64, precision)
        return Engines(stack, GraphStack(*network, free, task.dtype, width or 64, precision), stack)
    workers = Workers(*network, hyperparams, task.dtype, precision)
    small = task.forward_flops * hyperparams.batch_size < SMALL_BATCH_FLOPS and precision == "float32"
    if small or width is not None:
        trainer, pretrainer = (Stack(*network, settings, task.dtype, width or 64) for settings in (hyperparams, free))
        return Engines(trainer, pretrainer, workers)
    return Engines(workers, Workers(*network, free, task.dtype, precision), workers)


def check_precision(precision: str) -> None:
    """Refuse a precision that does not exist."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {precision!r}; expected one of {', '.join(get_args(Precision))}")
