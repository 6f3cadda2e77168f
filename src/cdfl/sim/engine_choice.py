"""Choose the engines for a network and a device."""

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
from cdfl.sim.stacked_network import STREAMS
from cdfl.sim.task import Task
from cdfl.sim.workers import Workers

Precision = Literal["float32", "tf32", "bfloat16"]

# Below this many operations in the forward pass of a batch, overhead dominates on a CPU core, and a stack of clients
# trains faster. Measured by benchmarks/speed.py.
SMALL_BATCH_FLOPS = 50e6

# Above this many, one client nearly fills a GPU: a few clients are trained side by side with separate calls.
BIG_BATCH_FLOPS = 20e9

# Operations of one evaluation on a GPU: enough to keep it busy without filling its memory.
EVALUATION_FLOPS = 2e12


def make_engines(task: Task, *, precision: Precision = "float32", width: int | None = None) -> Engines:
    """Return the fastest known engines for this network and device; `width` forces stacks of at most that many clients.

    A network that cannot be stacked is trained one client at a time, with the same results.
    """
    training = task.settings.training
    free = replace(training, proximal_strength=0.0)  # pre-training has no received model to stay close to
    check_precision(precision, task.device.type)

    def stack(settings: TrainingSettings) -> Stack:
        return Stack(task.model, task.loss, settings, task.dtype, width or 64, precision)

    def workers(settings: TrainingSettings) -> Workers:
        return Workers(task.model, task.loss, settings, task.dtype, precision, random=random)

    batch_flops = task.flops.forward * training.batch_size
    random = draws_random(task)
    if not can_stack(task):
        return Engines(workers(training), workers(free), workers(training))
    if task.device.type == "cuda":
        from cdfl.sim.cuda_stack import GraphStack

        big = batch_flops > BIG_BATCH_FLOPS
        height = width or (STREAMS if big else 64)
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
    """Return whether vmap can train this network, by trying it on two clients with two samples each.

    It cannot if the network draws random numbers or branches on computed values, nor if batch norm averages over
    all batches (momentum=None): that needs a counter for each client, and a stack has only one.
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
    """Return whether this network draws random numbers in training, as dropout does, by trying it."""
    model = copy.deepcopy(task.model).cpu().train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        model(torch.zeros(2, *task.federation.input_shape, dtype=task.dtype))
        return not torch.equal(before, torch.get_rng_state())


def make_fast(algorithm: Algorithm, task: Task, engines: Engines) -> Algorithm:
    """Return the algorithm with its server step as a CUDA graph, if that is possible and faster."""
    if task.device.type == "cuda" and task.loss is cross_entropy:
        from cdfl.sim.cuda_server import GraphServer
        from cdfl.sim.cuda_stack import GraphStack

        # For a big network, evaluating a cluster takes longer than waiting to learn which clusters moved. Then the
        # plain algorithm is faster, because it evaluates only those.
        stack = engines.evaluator
        if GraphServer.fits(algorithm) and isinstance(stack, GraphStack) and not stack.network.one_by_one:
            return GraphServer(algorithm, stack, task.proxy_sets)
    return algorithm


def check_precision(precision: str, device: str) -> None:
    """Raise ValueError if this device does not support the precision."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {precision!r}; expected one of {', '.join(get_args(Precision))}")
    if precision == "tf32" and not device.startswith("cuda"):
        raise ValueError(f"precision is 'tf32' on {device}; it needs a CUDA GPU; use float32 or bfloat16")
