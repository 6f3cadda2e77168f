"""Measure the Ray engine: what it costs, what a second worker gains, and whether workers keep their size.

Claims: with one worker the Ray engine costs at most 15 % over the local one; two workers on two cores are at least 1.7
times as fast as one where training is 95 % of the time; the memory of workers stays flat over thousands of stacks.

The cluster is made here, of processes, where only loopback exists. Each part is stored in benchmarks/results/ray.json:

    python -m benchmarks.loopback python -m benchmarks.ray_engine cost --pairs 1
    python -m benchmarks.loopback python -m benchmarks.ray_engine gain
    python -m benchmarks.loopback python -m benchmarks.ray_engine memory
"""

import argparse
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.processes import cpu_seconds
from benchmarks.ray_cluster import RayCluster
from benchmarks.result_files import machine, read, write
from cdfl.record import Event
from cdfl.sim.on_ray import RayEngine
from cdfl.sim.on_ray.connection import connected
from cdfl.sim.on_ray.trainer import RayTrainer
from cdfl.sim.runner import RunConfig, configure, run_events
from cdfl.sim.time_models import FewActive

Found = dict[str, Any]
PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure a part and store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["cost", "gain", "memory"])
    parser.add_argument("--pairs", type=int, default=1, help="interleaved pairs; they are added to those stored")
    parser.add_argument("--uploads", type=int, help="uploads of a run")
    parser.add_argument("--data-dir", type=Path, help="for gain: the folder that holds fashion-mnist/")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with RayCluster(2, store_mb=400) as cluster:
        if args.part == "memory":
            found = memory(cluster.address, args.uploads or 16_000)
            write("ray", read("ray", {}) | {"memory": found})
            return
        for _ in range(args.pairs):
            pair = cost(cluster.address, args.uploads or 1_500) if args.part == "cost" else gain(cluster.address, args)
            kept = read("ray", {})
            write("ray", kept | {args.part: [*kept.get(args.part, []), pair]})
            print(pair, flush=True)


def cost(address: str, uploads: int) -> Found:
    """Run digits-4 here with one thread, then on one worker with one core."""
    config = configure("digits-4", num_uploads=uploads)
    here, local = timed(config, None)
    there, events = timed(config, RayEngine(address, workers=1))
    return {"uploads": uploads, "local": here, "ray": there, "same_events": events == local, "machine": machine()}


def gain(address: str, args: argparse.Namespace) -> Found:
    """Run fashion-mnist-4 on one worker, then on two, with one core each."""
    uploads = args.uploads or 40
    changes: dict[str, Any] = {"num_clients": uploads // 2, "local_epochs": 5, "shared_epochs": 1, "separate_epochs": 1}
    config = configure("fashion-mnist-4", num_uploads=uploads, time_model="sessions", **changes)
    one, events = timed(config, RayEngine(address, workers=1), args.data_dir)
    two, others = timed(config, RayEngine(address, workers=2), args.data_dir)
    return {"uploads": uploads, **changes, "one": one, "two": two, "same_events": events == others} | {
        "machine": machine()
    }


def timed(config: RunConfig, engine: RayEngine | None, data_dir: Path | None = None) -> tuple[Found, list[Event]]:
    """Return the seconds of a run, of those how many it waited for workers, CPU seconds, and its events."""
    waited = looked = looking = 0.0
    used: dict[int, float] = {}  # CPU seconds of workers
    train: Callable[..., Any] = RayTrainer.train

    def watched(*given: Any) -> Any:
        nonlocal waited, looked, looking
        begun = time.perf_counter()
        models = train(*given)
        ended = time.perf_counter()
        waited += ended - begun
        if ended - looked > 2.0:
            used.update({pid: cpu_seconds(pid) for pid in workers()})
            looked = time.perf_counter()
            looking += looked - ended
        return models

    RayTrainer.train = watched  # type: ignore[method-assign, assignment]
    begun, cpu = time.perf_counter(), time.process_time()
    try:
        events = list(run_events(config, None, data_dir, engine=engine))
    finally:
        RayTrainer.train = train  # type: ignore[method-assign]
    seconds = time.perf_counter() - begun - looking
    found = {"seconds": seconds, "cpu": time.process_time() - cpu, "load": os.getloadavg()[0]}
    return found | ({"training": waited, "workers_cpu": list(used.values())} if engine else {}), events


def memory(address: str, uploads: int) -> Found:
    """Run many small stacks on two workers, and note how large the workers are after each few hundred."""
    quick: dict[str, Any] = {"local_epochs": 1, "shared_epochs": 1, "separate_epochs": 1}
    config = configure("digits-4", num_uploads=uploads, time_model=FewActive(4, 5), **quick)
    stacks, rows = 0, []
    train: Callable[..., Any] = RayTrainer.train

    def counted(*given: Any) -> Any:
        nonlocal stacks
        stacks += 1
        models = train(*given)
        if stacks % 250 == 0:
            rows.append({"stacks": stacks, "workers_mb": [unshared_mb(pid) for pid in workers()]})
            print(rows[-1], flush=True)
            kept = {"rows": rows, "uploads": uploads, "machine": machine(), "driver_mb": unshared_mb(os.getpid())}
            write("ray", read("ray", {}) | {"memory": kept})
        return models

    RayTrainer.train = counted  # type: ignore[method-assign, assignment]
    with connected(RayEngine(address)) as ray:
        for _ in run_events(config, engine=RayEngine(address, workers=2)):
            pass
        store = ray.cluster_resources()["object_store_memory"] - ray.available_resources().get("object_store_memory", 0)
    kept: Found = read("ray")["memory"]
    return kept | {"stacks": stacks, "store_mb_at_end": store / 2**20}


def workers() -> list[int]:
    """Return the processes of workers that train."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if place.read_bytes().startswith(b"ray::Worker"):
                found.append(int(place.parent.name))
    return sorted(found)


def unshared_mb(pid: int) -> float:
    """Return the resident memory of a process without what it shares with others."""
    _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return round((resident - shared) * PAGE / 2**20, 1)


def table() -> str:
    """Return what the engine costs, gains, and holds."""
    found = read("ray", {})
    rows = ["| | measured | pairs |", "|---|---|---|"]
    if pairs := found.get("cost"):
        ratios = [pair["ray"]["seconds"] / pair["local"]["seconds"] for pair in pairs]
        words = f"digits-4, {pairs[0]['uploads']:,} uploads: one worker against the local engine"
        seconds = median(pair["local"]["seconds"] for pair in pairs)
        rows.append(
            f"| {words}, one thread each ({seconds:.0f} s) | **{_spread(ratios)}** of the time | {len(pairs)} |"
        )
    if pairs := found.get("gain"):
        ratios = [pair["one"]["seconds"] / pair["two"]["seconds"] for pair in pairs]
        share = median(pair["one"]["training"] / pair["one"]["seconds"] for pair in pairs)
        words = f"fashion-mnist-4, {pairs[0]['uploads']} uploads of {pairs[0]['local_epochs']} epochs, training "
        words += f"{share:.0%} of the time: two workers against one, one core each"
        rows.append(f"| {words} | **{_spread(ratios)} times** as fast | {len(pairs)} |")
    if kept := found.get("memory"):
        first, last = kept["rows"][0], kept["rows"][-1]
        sizes = [" and ".join(f"{size:.0f}" for size in row["workers_mb"]) for row in (first, last)]
        words = f"memory of two workers after {first['stacks']:,} stacks, and after {last['stacks']:,}"
        rows.append(f"| {words} | {sizes[0]} MB; {sizes[1]} MB | 1 |")
    if len(rows) == 2:
        return "Not measured yet.\n"
    same = [pair["same_events"] for part in ("cost", "gain") for pair in found.get(part, [])]
    on = next(own[0]["machine"] for own in (found.get("cost"), found.get("gain")) if own)
    equal = f"In {sum(same)} of {len(same)} pairs the events were equal to the bit."
    return "\n".join(rows) + f"\n\n{equal} {on['cpu']}, {on['cores']} cores; torch {on['torch']}.\n"


def _spread(ratios: list[float]) -> str:
    middle = f"{median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
