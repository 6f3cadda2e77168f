"""Which engine for which network and device."""

import copy
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from cdfl.algorithms import Algorithm
from cdfl.core import TrainingSettings, flatten
from cdfl.sim.engine import Engines
from cdfl.sim.stack import Stack
from cdfl.sim.stacked_network import LANES
from cdfl.sim.task import Task
from cdfl.sim.workers import Workers

Precision = Literal["float32", "tf32", "bfloat16"]

# Below this many operations for one batch to go forward, a CPU core spends its time between the operations,
# not in them, and clients are better trained as one stack. Measured: benchmarks/speed.py.
SMALL_BATCH_FLOPS = 50e6

# Above this many, one client nearly fills a GPU by itself: a few are trained side by side, each with its own calls.
BIG_BATCH_FLOPS = 20e9

# So many operations are shown to models at once on a GPU: enough to fill it, not enough to fill its memory.
EVALUATION_FLOPS = 2e12


def make_engines(task: Task, *, precision: Precision = "float32", width: int | None = None) -> Engines:
    """The fastest engines we know for this network on this device; `width` asks for stacks, and limits them.

    A network that cannot be stacked is trained one client at a time, with the same results.
    """
    training = task.settings.training
    free = replace(training, proximal_strength=0.0)  # pre-training has no earlier model to stay near to
    check_precision(precision, task.device.type)

    def stack(settings: TrainingSettings) -> Stack:
        return Stack(task.model, task.loss, settings, task.dtype, width or 64, precision)

    def workers(settings: TrainingSettings) -> Workers:
        return Workers(task.model, task.loss, settings, task.dtype, precision, random=random)

    batch_flops = task.flops.forward * training.batch_size
    random = draws_random(task)
    if not can_stack(task):  # as where every client draws random numbers of its own
        return Engines(workers(training), workers(free), workers(training))
    if task.device.type == "cuda":
        from cdfl.sim.cuda_stack import GraphStack

        big = batch_flops > BIG_BATCH_FLOPS
        height = width or (LANES if big else 64)
        together = max(256, int(EVALUATION_FLOPS / max(1, task.flops.forward)))
        trainer, pretrainer = (
            GraphStack(task.model, task.loss, settings, task.dtype, height, precision, together, one_by_one=big)
            for settings in (training, free)
        )
        return Engines(trainer, pretrainer, trainer, scores_together=64)
    if width is not None or (batch_flops < SMALL_BATCH_FLOPS and precision == "float32"):
        return Engines(stack(training), stack(free), workers(training))
    return Engines(workers(training), workers(free), workers(training))


def can_stack(task: Task) -> bool:
    """Can vmap train this network? Tried out, on two clients with two samples each.

    It cannot where a network draws random numbers or branches on what it computes, nor where batch norm averages over
    all batches (momentum=None): that takes a counter, and a stack has one for all its clients.
    """
    model = copy.deepcopy(task.model).train()
    norms = (layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._NormBase))
    if any(norm.track_running_stats and norm.momentum is None for norm in norms):
        return False
    rows = flatten(task.model).repeat(2, 1)  # (2, P)
    views = task.layout.views(rows)
    for name, parameter in model.named_parameters():
        views[name] = views[name].detach().requires_grad_(parameter.requires_grad)
    inputs = rows.new_zeros(2, 2, *task.federation.input_shape)
    targets = torch.zeros(2, 2, dtype=torch.int64, device=task.device)

    def loss(views: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return task.loss(functional_call(model, views, (inputs,)), targets)

    try:
        vmap(loss)(views, inputs, targets).sum().backward()
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def draws_random(task: Task) -> bool:
    """Does this network draw random numbers in training, as dropout does? Tried out, on two samples."""
    model = copy.deepcopy(task.model).cpu().train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        model(torch.zeros(2, *task.federation.input_shape, dtype=task.dtype))
        return not torch.equal(before, torch.get_rng_state())


def make_fast(algorithm: Algorithm, task: Task, engines: Engines) -> Algorithm:
    """The same algorithm, with its server steps on the device where that is written."""
    if task.device.type == "cuda" and task.loss is cross_entropy:
        from cdfl.sim.cuda_server import GraphServer
        from cdfl.sim.cuda_stack import GraphStack

        # Evaluating a cluster of a big network takes longer than asking the device which clusters moved. Then the
        # algorithm as it is, which evaluates only those, is faster.
        stack = engines.evaluator
        if GraphServer.fits(algorithm) and isinstance(stack, GraphStack) and not stack.network.one_by_one:
            return GraphServer(algorithm, stack, task.proxy_sets)
    return algorithm


def check_precision(precision: str, device: str) -> None:
    """Refuse a precision that does not exist, or not on this device."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {precision!r}; expected one of {', '.join(get_args(Precision))}")
    if precision == "tf32" and not device.startswith("cuda"):
        raise ValueError(f"precision is 'tf32' on {device}; it needs a CUDA GPU, so take float32 or bfloat16 here")
