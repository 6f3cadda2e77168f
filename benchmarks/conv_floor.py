"""Time the convolutions of ResNet-18 alone: a lower bound for a simulation that leaves them to cuDNN.

Claim: on a GPU a run of ResNet-18 is mostly convolutions; stacks remove most of the rest.

Times every convolution of a training step (forward and backward) and of an evaluation of a proxy set, each on one batch
and replayed from a CUDA graph: no batch norm, no ReLU, no optimizer, no Python. The bound is that time multiplied by
the number of steps and evaluations of the run that `benchmarks.speed` times.
"""

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.kernels import microseconds
from benchmarks.result_files import RESULTS, commit, machine
from cdfl.sim.cuda_client_stack import tensor_cores
from cdfl.sim.runner import configure
from cdfl.sim.scenario_instance import ScenarioInstance
from cdfl.sim.time_models import Uniform

DTYPES = {"tf32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="cifar-10-4", help="name of a scenario with ResNet-18")
    parser.add_argument("--num-clients", type=int, default=80, help="clients of the run")
    parser.add_argument("--num-uploads", type=int, default=40, help="uploads of the run")
    parser.add_argument("--data-dir", type=Path, help="folder of the datasets; default: $CDFL_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS / "floor-h200.json", help="result file")
    parser.add_argument("--commit", help="commit of the code, for a copy without git")
    args = parser.parse_args()
    config = configure(args.scenario, num_clients=args.num_clients, num_uploads=args.num_uploads)
    instance = ScenarioInstance(config.scenario, config.scenario.federation(0, args.data_dir), config.settings)
    steps, evaluations = counts(instance, args.num_uploads)
    found: dict[str, Any] = {"scenario": args.scenario, "uploads": args.num_uploads, "steps": steps}
    found |= {"evaluations": evaluations, "machine": machine(), "commit": args.commit or commit(), "ms": {}}
    for precision, dtype in DTYPES.items():
        with tensor_cores(precision):
            batch = config.settings.training.batch_size
            step = sum(microseconds(work) for work in convolutions(instance, batch, dtype, back=True))
            evaluation = sum(
                microseconds(work) for work in convolutions(instance, len(instance.proxy_sets[0][0]), dtype, back=False)
            )
        found["ms"][precision] = {"step": round(step / 1e3, 3), "evaluation": round(evaluation / 1e3, 3)}
        seconds = (steps * step + evaluations * evaluation) / 1e6
        print(
            f"{precision}: {step / 1e3:.2f} ms a step, {evaluation / 1e3:.2f} ms an evaluation, {seconds:.2f} s",
            flush=True,
        )
    args.out.write_text(json.dumps(found, indent=1) + "\n")


def counts(instance: ScenarioInstance, uploads: int) -> tuple[int, int]:
    """Return the training steps of clients, and the evaluations of uploads on proxy sets."""
    turns = [tick for tick in islice(instance.ticks(Uniform()), 10 * uploads) if tick.kind == "turn"][:uploads]
    seen: dict[int, int] = {}
    steps = 0
    for turn in turns:
        steps += len(instance.turn_data(turn.client, seen.get(turn.client, 0)).plan)
        seen[turn.client] = seen.get(turn.client, 0) + 1
    return steps, uploads * len(instance.proxy_sets)


def convolutions(instance: ScenarioInstance, batch: int, dtype: torch.dtype, *, back: bool) -> list[Any]:
    """Return one call for each convolution of the network: forward and, with `back`, also both gradients."""
    shapes: list[tuple[nn.Conv2d, torch.Size]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, inputs, _: shapes.append((layer, inputs[0].shape)))
        for layer in instance.model.modules()
        if isinstance(layer, nn.Conv2d)
    ]
    with torch.no_grad():
        instance.model.eval()(torch.zeros(1, *instance.federation.input_shape))
    for hook in hooks:
        hook.remove()
    return [
        _work(layer, shape, batch, dtype, back=back, first=place == 0) for place, (layer, shape) in enumerate(shapes)
    ]


def _work(layer: nn.Conv2d, shape: torch.Size, batch: int, dtype: torch.dtype, *, back: bool, first: bool) -> Any:
    def last(tensor: Tensor) -> Tensor:
        return tensor.to("cuda", dtype).contiguous(memory_format=torch.channels_last)

    images, filters = last(torch.randn(batch, *shape[1:])), last(layer.weight.detach())
    settings: Any = (list(layer.stride), list(layer.padding), [1, 1], False, [0, 0], 1)
    grad = torch.randn_like(torch.ops.aten.convolution(images, filters, None, *settings))

    def work() -> None:
        torch.ops.aten.convolution(images, filters, None, *settings)
        if back:
            wanted = [not first, True, False]  # the gradient of the images is not needed
            torch.ops.aten.convolution_backward(grad, images, filters, None, *settings, wanted)

    return work


if __name__ == "__main__":
    main()
