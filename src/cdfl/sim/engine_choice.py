"""Choose the engines for a network and a device."""

import copy
import warnings
from dataclasses import replace
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from cdfl.algorithms import Algorithm
from cdfl.core import Layout, Loss, TrainingSettings, flatten
from cdfl.core.sample_losses import row_losses
from cdfl.sim.client_stack import Stack
from cdfl.sim.cpu_threads import Workers
from cdfl.sim.engine import Engines
from cdfl.sim.flops import count_calls
from cdfl.sim.kernel_network import KernelNetwork
from cdfl.sim.scenario_instance import ScenarioInstance, client_instance
from cdfl.sim.stacked_network import STREAMS

Precision = Literal["float32", "tf32", "bfloat16"]

# Below this many operations in the forward pass of a batch, overhead dominates on a CPU core, and a stack of clients
# trains faster. Measured by benchmarks/speed.py.
SMALL_BATCH_FLOPS = 50e6
# So it does for a network of many small operations, such as a recurrent one. Measured by benchmarks/sequences.py.
SMALL_CALL_FLOPS = 1e6

# Above this many operations, one client nearly fills a GPU; a few clients then train side by side in separate calls.
BIG_BATCH_FLOPS = 20e9

# One evaluation on a GPU has this many operations: they keep it busy without filling its memory.
EVALUATION_FLOPS = 2e12


class MakeEngines(Protocol):
    """Makes the engines for a network: here, or on a cluster."""

    def __call__(self, instance: ScenarioInstance, algorithm: Algorithm, *, precision: Precision) -> Engines:
        """Return engines for the network that the clients of an algorithm train."""
        ...


def make_engines(
    instance: ScenarioInstance,
    algorithm: Algorithm | None = None,
    *,
    precision: Precision = "float32",
    width: int | None = None,
    cores: int | None = None,
) -> Engines:
    """Return the fastest known engines for a network and a device; `width` forces stacks of at most that many clients.

    `cores` is the number of CPU cores to use; None for all.

    The network is that of the instance, or another one that the clients of `algorithm` train.

    A network that cannot be stacked is trained one client at a time, with the same results.
    """
    if algorithm is not None and (clients := client_instance(instance, algorithm)) is not instance:
        own, usual = (make_engines(each, precision=precision, width=width, cores=cores) for each in (clients, instance))
        return replace(own, pretrainer=usual.pretrainer, of_clusters=usual.evaluator)
    training = instance.settings.training
    free = replace(training, proximal_strength=0.0)  # pre-training has no received model to stay close to
    check_precision(precision, instance.device.type)

    def stack(settings: TrainingSettings) -> Stack:
        return Stack(instance.model, instance.loss, settings, instance.dtype, width or 64, precision, images=images)

    def workers(settings: TrainingSettings) -> Workers:
        kinds = {"random": random, "images": images}
        return Workers(instance.model, instance.loss, settings, instance.dtype, precision, cores, **kinds)

    batch_flops = instance.flops.forward * training.batch_size
    random, images = draws_random(instance), takes_channels_last(instance)
    if not can_stack(instance):
        return Engines(workers(training), workers(free), workers(training))
    if instance.device.type == "cuda":
        from cdfl.sim.cuda_client_stack import GraphStack

        big = batch_flops > BIG_BATCH_FLOPS
        height = width or (STREAMS if big else 64)
        together = max(256, int(EVALUATION_FLOPS / max(1, instance.flops.forward)))
        trainer, pretrainer = (
            GraphStack(
                instance.model,
                instance.loss,
                settings,
                instance.dtype,
                height,
                precision,
                together,
                one_by_one=big,
                images=images,
            )
            for settings in (training, free)
        )
        return Engines(trainer, pretrainer, trainer, scores_together=64)
    calls = count_calls(instance.model, instance.examples[0])
    small = batch_flops < SMALL_BATCH_FLOPS or batch_flops / max(1, calls) < SMALL_CALL_FLOPS
    if width is not None or (small and precision == "float32"):
        return Engines(stack(training), stack(free), workers(training))
    return Engines(workers(training), workers(free), workers(training))


def can_stack(instance: ScenarioInstance) -> bool:
    """Return whether clients with the network of an instance can be trained in a stack.

    Layers that have kernels of their own can. Others are tried, on the host first: there it needs none of the libraries
    that a GPU loads for seconds.
    """
    if instance.loss is cross_entropy and KernelNetwork.of(instance.model, instance.layout, "ieee") is not None:
        return True
    inputs, targets = instance.examples
    on_host = vmap_trains(copy.deepcopy(instance.model).cpu(), instance.loss, inputs.cpu(), targets.cpu())
    return on_host or (inputs.is_cuda and vmap_trains(instance.model, instance.loss, inputs, targets))


def vmap_trains(network: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> bool:
    """Return whether vmap can train a network, by trying it on two clients with two samples each.

    vmap fails if the network draws random numbers or branches on computed values, and warns if it takes an operation
    one row at a time. Batch norm that averages over all batches (momentum=None) cannot be stacked either: it needs a
    counter for each client, and a stack has only one.
    """
    model = copy.deepcopy(network).train()
    norms = (layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._NormBase))
    if any(norm.track_running_stats and norm.momentum is None for norm in norms):
        return False
    rows = flatten(network).repeat(2, 1)  # (2, P)
    views = Layout.of(network).views(rows)
    for name, parameter in model.named_parameters():
        views[name] = views[name].detach().requires_grad_(parameter.requires_grad)
    inputs, targets = (part.expand(2, *part.shape) for part in (inputs, targets))

    def outputs(views: dict[str, Tensor], inputs: Tensor) -> Tensor:
        found: Tensor = functional_call(model, views, (inputs,))
        return found

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*performance drop")
            row_losses(loss, vmap(outputs)(views, inputs), targets).sum().backward()
    except (RuntimeError, ValueError, NotImplementedError, UserWarning):
        return False
    return True


def takes_channels_last(instance: ScenarioInstance) -> bool:
    """Return whether the inputs are images (n, C, H, W) that the network takes channels last, by trying it.

    `inputs.view(len(inputs), -1)`, for example, works only on images that are stored channels first.
    """
    inputs = instance.examples[0].cpu()
    if inputs.ndim != 4 or not inputs.is_floating_point():
        return False
    model = copy.deepcopy(instance.model).cpu().train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model(inputs)  # an error of the network comes out as it is
        try:
            model(inputs.to(memory_format=torch.channels_last))
        except RuntimeError:
            return False
    return True


def draws_random(instance: ScenarioInstance) -> bool:
    """Return whether this network draws random numbers in training, as dropout does, by trying it."""
    model = copy.deepcopy(instance.model).cpu().train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        model(instance.examples[0].cpu())
        return not torch.equal(before, torch.get_rng_state())


def make_fast(algorithm: Algorithm, instance: ScenarioInstance, engines: Engines) -> Algorithm:
    """Return the algorithm with its server step as a CUDA graph, if that is possible and faster."""
    is_plain = instance.loss is cross_entropy and instance.federation.num_classes is not None
    if instance.device.type == "cuda" and is_plain:
        from cdfl.sim.cuda_client_stack import GraphStack
        from cdfl.sim.cuda_server import GraphServer

        # For a big network, evaluating a cluster takes longer than waiting to learn which clusters moved. Then the
        # plain algorithm is faster, because it evaluates only those.
        stack = engines.evaluator
        if GraphServer.fits(algorithm) and isinstance(stack, GraphStack) and not stack.network.one_by_one:
            return GraphServer(algorithm, stack, instance.proxy_sets)
    return algorithm


def check_precision(precision: str, device: str) -> None:
    """Raise ValueError if this device does not support the precision."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {precision!r}; expected one of {', '.join(get_args(Precision))}")
    if precision == "tf32" and not device.startswith("cuda"):
        raise ValueError(f"precision is 'tf32' on {device}; it needs a CUDA GPU; use float32 or bfloat16")
