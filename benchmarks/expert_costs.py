"""Measure what experts behind a router cost a client: bytes down, the router beside a training, a prediction.

Claim: with the paper's CNN and four clusters, a reply of experts in int8 is at most 1.1 times as large as one model in
float32; the router and EM take at most 5 % of a training's time; a prediction with one expert an input takes at most
1.3 times that of one model. Experts are evaluated faster than PyTorch evaluates the network (`core.for_evaluation`), so
they are compared with one model that is evaluated in the same way, and in plain PyTorch.

The same is measured for smaller networks, where the router is nearly as large as an expert. The networks have random
weights, and inputs are noise: times do not depend on either. Rounds are interleaved, on one thread; times are medians
of CPU time, and ratios are medians over rounds.

Writes benchmarks/results/experts.json. Takes about two minutes.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.result_files import machine, read, write
from cdfl.client.experts import ClientRouter, Experts
from cdfl.core import Settings, client_update, flatten
from cdfl.core.batches import batch_plan
from cdfl.core.experts import loss_scale
from cdfl.core.proxy_sets import for_evaluation, in_pieces, outputs
from cdfl.core.router import train_router
from cdfl.models import MODELS, MakeModel
from cdfl.models.routers import build_router, router_spec
from cdfl.wire import RouterMessage, body_size, encode_router, experts_size
from experiments.harness.networks import NETWORKS as SMALLER

CLUSTERS, CLASSES, SHAPE = 4, 10, (1, 28, 28)
NETWORKS: dict[str, MakeModel] = {
    "paper's CNN": MODELS["cnn"],
    **{name: SMALLER[name] for name in ("cnn-27k", "cnn-4k")},
}
RATIOS = [
    ("router and EM", "training"),
    *((task, of) for task in ("one expert", "all experts") for of in ("one model", "plain PyTorch")),
]
SAMPLES, PREDICTED, ROUNDS = 400, 256, 7  # samples a turn; inputs of a prediction
CALLS = 3  # of each task in a round, one after the other


def main() -> None:
    """Measure and store."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = {name: measure(make) for name, make in NETWORKS.items()}
    write(
        "experts",
        {
            "machine": machine(),
            "load": os.getloadavg()[0],
            "samples": SAMPLES,
            "predicted": PREDICTED,
            "networks": found,
        },
    )
    print(table())


def measure(make: MakeModel) -> dict[str, Any]:
    """Return the bytes, times and ratios of one network."""
    network = make(SHAPE, CLASSES)
    models = torch.stack([flatten(make(SHAPE, CLASSES)) for _ in range(CLUSTERS)])
    experts = Experts(models, network, cross_entropy)
    inputs, targets = torch.rand(SAMPLES, *SHAPE), torch.arange(SAMPLES) % CLASSES
    spec = router_spec(inputs, CLUSTERS, experts.layout.num_parameters)
    few = [torch.rand(8, *SHAPE) for _ in range(CLUSTERS)]
    trained = train_router(build_router(spec), few, torch.Generator().manual_seed(0))
    scale = loss_scale(torch.rand(8, CLUSTERS), torch.arange(8) % CLUSTERS)
    message = RouterMessage(trained, spec, scale)
    router = ClientRouter(message, None, torch.device("cpu"))
    taken = times(experts, router, inputs, targets)
    return {
        "parameters": experts.layout.num_parameters,
        "router_parameters": len(trained.model),
        "bytes": sizes(experts, message),
        "ms": {name: median(values) for name, values in taken.items()},
        "ratios": {
            f"{task} / {of}": median(one / other for one, other in zip(taken[task], taken[of], strict=True))
            for task, of in RATIOS
        },
    }


def sizes(experts: Experts, message: RouterMessage) -> dict[str, int]:
    """Return the bytes of one model, of replies, and of the router."""
    rounded = {dtype: experts_size(experts.layout, CLUSTERS, dtype) for dtype in ("int8", "float16", "float32")}
    return {"model": body_size(experts.layout), **rounded, "router": len(encode_router(message))}


def times(experts: Experts, router: ClientRouter, inputs: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """Return the milliseconds of each task in each round."""
    settings, network, fast = Settings().training, experts.network, for_evaluation(experts.network)
    start, uniform, some = experts.models[0], [1 / CLUSTERS] * CLUSTERS, inputs[:PREDICTED]
    plan = batch_plan(SAMPLES, settings.batch_size, settings.local_epochs, torch.Generator().manual_seed(0))

    def train() -> None:
        client_update(network, start, ((inputs[batch], targets[batch]) for batch in plan), cross_entropy, settings)

    tasks: dict[str, Callable[[], Any]] = {
        "training": train,
        "router and EM": lambda: router.see(inputs, uniform),
        "plain PyTorch": lambda: outputs(network, experts.layout, start, some),
        "one model": lambda: in_pieces(lambda part: outputs(fast, experts.layout, start, part), some),
        "one expert": lambda: experts.predict(router, some, uniform, one_expert=True),
        "all experts": lambda: experts.predict(router, some, uniform, one_expert=False),
    }
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(ROUNDS + 1):
        for name, task in tasks.items():
            begun = time.process_time()
            for _ in range(CALLS):
                task()
            taken[name].append(1000 * (time.process_time() - begun) / CALLS)
    return {name: values[1:] for name, values in taken.items()}  # the first round warms up


def table() -> str:
    """Return what experts cost, for each network."""
    found = read("experts")
    if found is None:
        return "Not measured yet.\n"
    rows = [
        "| network | router | reply in int8, of one float32 model | router, once | router and EM, of a training | one "
        "expert an input, of one model | of plain PyTorch | all experts, of one model | of plain PyTorch |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, own in found["networks"].items():
        size, ratios = own["bytes"], own["ratios"]
        rows.append(
            f"| {name}, {own['parameters']:,} | {own['router_parameters']:,} | {size['int8'] / size['model']:.3f} "
            f"| {size['router'] / size['model']:.2f} | {ratios['router and EM / training']:.1%} "
            + "".join(f"| {ratios[f'{task} / {of}']:.2f} " for task, of in RATIOS if of != "training")
            + "|"
        )
    on = found["machine"]
    where = f"{on['cpu']}, one thread, load {found['load']:.0f}, {on['date']}"
    note = f"\nFour clusters, 28x28 pictures, {found['samples']} samples a turn, {where}.\n"
    return "\n".join(rows) + "\n" + note


if __name__ == "__main__":
    main()
