"""Measure what one upload costs a server: bytes, FLOPs and milliseconds, by network and number of clusters.

Claim: with mixtures that clients estimate, an upload costs memory traffic alone; evaluation on proxy sets costs ten
times as much and more.

*Step*: `core.server_update` without evaluation, for an upload that brings its mixture. *Evaluation*: one model on one
proxy set of 1,000 images, from the time of 100. *Encode*: the reply of experts in int8. *Sync*: the upload to a file,
and the file to disk. Medians of CPU time, of *sync* of wall time; one thread. Writes
benchmarks/results/unit_costs.json.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.result_files import commit, machine, read, write
from cdfl.core import GIVEN, Layout, ProxySets, ServerState, Settings, Upload, flatten, server_update
from cdfl.malloc_options import keep_freed_memory
from cdfl.models import MODELS
from cdfl.sim.flops import count_flops
from cdfl.wire.experts import encode_experts, experts_size

NETWORKS = {"small-cnn": (1, 28, 28), "cnn": (1, 28, 28)}
CLUSTERS = (2, 4, 8, 16)
IMAGES = 1000  # of a proxy set
TRIED = 100  # of them; the time of all is computed from these
TIMES = 5


def main() -> None:
    """Measure and store."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()  # as the server does
    rows = []
    for name, shape in NETWORKS.items():
        rows.append(network(name, shape))
        print(rows[-1], flush=True)
        write("unit_costs", {"machine": machine(), "commit": commit(), "images": IMAGES, "rows": rows})


def network(name: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Measure one network."""
    model = MODELS[name](shape, 10)
    layout, start = Layout.of(model), flatten(model)
    flops = count_flops(model, torch.zeros(2, *shape))
    proxies = ProxySets(model, cross_entropy, [(torch.rand(TRIED, *shape), torch.randint(10, (TRIED,)))])
    one = torch.zeros(1, dtype=torch.int64)
    found: dict[str, Any] = {"network": name, "parameters": layout.num_parameters, "bytes": 4 * layout.size}
    found |= {"flops_forward": flops.forward, "flops_training": flops.training}
    found["ms_evaluation"] = IMAGES / TRIED * milliseconds(lambda: proxies(start[None], one), 3)
    found["ms_sync"] = synced(start.numpy().tobytes())
    found["clusters"] = {str(count): clusters(start, layout, count) for count in CLUSTERS}
    return found


def clusters(start: Tensor, layout: Layout, count: int) -> dict[str, float]:
    """Measure what depends on the number of clusters."""
    models = start.repeat(count, 1)
    state = ServerState(models, torch.full((count,), torch.nan), torch.zeros(count, dtype=torch.int64))
    mixture = torch.full((count,), 1 / count, dtype=torch.float64)
    upload = Upload(start + 1e-3, 0, "client", mixture=mixture, base_model=start)
    settings = Settings()

    def step() -> None:
        server_update(state, upload, settings, _unused, estimator=GIVEN)

    return {
        "ms_step": milliseconds(step),
        "ms_encode": milliseconds(lambda: encode_experts(models, layout)),
        "bytes_experts": experts_size(layout, count),
        "state_bytes": 4 * layout.size * count,
    }


def milliseconds(work: Callable[[], Any], times: int = TIMES) -> float:
    """Return the median CPU time of a call."""
    work()
    found = []
    for _ in range(times):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return round(1e3 * median(found), 3)


def synced(data: bytes) -> float:
    """Return the median wall time to write a new file and sync it."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(TIMES):
            begun = time.perf_counter()
            with (Path(folder) / str(number)).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            found.append(time.perf_counter() - begun)
    return round(1e3 * median(found), 3)


def _unused(models: Tensor, numbers: Tensor) -> Tensor:
    raise AssertionError("an upload with its mixture needs no evaluation")


def table() -> str:
    """Return the table of the page."""
    found = read("unit_costs")
    lines = [
        "| network | K | one model | K experts, int8 | step | encode experts | sync | 2 K evaluations | FLOPs |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        for count, own in row["clusters"].items():
            passes = 2 * int(count)
            lines.append(
                f"| {row['network']}, {row['parameters']:,} parameters | {count} | {_size(row['bytes'])} "
                f"| {_size(own['bytes_experts'])} | {own['ms_step']:.1f} ms "
                f"| {own['ms_encode']:.1f} ms | {row['ms_sync']:.1f} ms | {passes * row['ms_evaluation']:,.0f} ms "
                f"| {passes * found['images'] * row['flops_forward'] / 1e9:,.0f} G |"
            )
    on = found["machine"]
    return "\n".join([*lines, "", f"One core of {on['cpu']}; torch {on['torch']}, {on['date']}."]) + "\n"


def _size(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.0f} kB"


if __name__ == "__main__":
    main()
