"""Measure the Ray engine: what it costs, what a second worker gains, and whether workers keep their size.

Claims: with one worker the Ray engine costs at most 15 % over the local one; two workers on two cores are at least 1.7
times as fast as one where training is 95 % of the time; the memory of workers stays flat over thousands of stacks.

The cluster is made here, of processes, where only loopback exists. Each part is stored in benchmarks/results/ray.json:

    python -m benchmarks.on_loopback python -m benchmarks.ray_engine cost --pairs 1
    python -m benchmarks.on_loopback python -m benchmarks.ray_engine gain
    python -m benchmarks.on_loopback python -m benchmarks.ray_engine memory
"""

import argparse
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.processes import cpu_seconds
from benchmarks.ray_cluster import RayCluster
from benchmarks.result_files import machine, read, write
from cdfl.core import flatten
from cdfl.data import Sizes
from cdfl.on_ray import RayEngine
from cdfl.run_events import Event, Finished, Separated
from cdfl.scenarios import load_scenario
from cdfl.sim.engine import Training
from cdfl.sim.on_ray.engines import cluster_engines
from cdfl.sim.on_ray.trainer import RayTrainer
from cdfl.sim.runner import RunConfig, configure, run_events, simulations

Found = dict[str, Any]
PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure a part and store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["cost", "gain", "memory"])
    parser.add_argument("--pairs", type=int, default=1, help="interleaved pairs; they are added to those stored")
    parser.add_argument("--uploads", type=int, help="uploads of a run")
    parser.add_argument("--stacks", type=int, default=4_000, help="for memory")
    parser.add_argument("--data-dir", type=Path, help="for gain: the folder that holds fashion-mnist/")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with RayCluster(2, store_mb=400) as cluster:
        if args.part == "memory":
            found = memory(cluster.address, args.stacks)
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
    """Run fashion-mnist-4 on one worker, then on two, with one core each.

    The driver evaluates on few samples, so that training is nearly all that is done.
    """
    uploads = args.uploads or 40
    passes = {"local_epochs": 20, "shared_epochs": 1, "separate_epochs": 1}
    changes: dict[str, Any] = {"num_clients": uploads // 2} | passes
    scenario = load_scenario("fashion-mnist-4")
    scenario = replace(scenario, sizes=replace(scenario.sizes or Sizes(), test=50, proxy=50))
    config = configure(scenario, num_uploads=uploads, time_model="sessions", **changes)
    one, events = timed(config, RayEngine(address, workers=1), args.data_dir)
    two, others = timed(config, RayEngine(address, workers=2), args.data_dir)
    return {"uploads": uploads, **changes, "one": one, "two": two, "same_events": events == others} | {
        "machine": machine()
    }


def timed(config: RunConfig, engine: RayEngine | None, data_dir: Path | None = None) -> tuple[Found, list[Event]]:
    """Return the seconds of a run after its pre-training, also in CPU time and in waiting for workers; and its events.

    CPU time counts this process and the workers, not the other processes of Ray.
    """
    waited = 0.0
    train: Callable[..., Any] = RayTrainer.train

    def watched(*given: Any) -> Any:
        nonlocal waited
        begun = time.perf_counter()
        models = train(*given)
        waited += time.perf_counter() - begun
        return models

    RayTrainer.train = watched  # type: ignore[method-assign, assignment]
    events, marks = [], []
    try:
        for event in run_events(config, None, data_dir, engine=engine):
            events.append(event)
            if isinstance(event, Separated | Finished):  # before the first upload, after the last
                used = {pid: cpu_seconds(pid) for pid in workers()}
                marks.append((time.perf_counter(), time.process_time(), waited, used))
    finally:
        RayTrainer.train = train  # type: ignore[method-assign]
    (begun, cpu, before, first), (ended, later, after, last) = marks
    there = [round(last[pid] - first.get(pid, 0.0), 2) for pid in last]
    found: Found = {"seconds": ended - begun, "cpu": later - cpu, "load": os.getloadavg()[0]}
    return found | ({"training": after - before, "workers_cpu": there} if engine else {}), events


def memory(address: str, stacks: int) -> Found:
    """Train one small stack again and again on two workers, and note how large all processes are."""
    (simulation,) = simulations([configure("digits-4")])
    instance, rows = simulation.instance, list[Found]()
    turns = [instance.turn_data(client, 0) for client in range(8)]
    with cluster_engines(RayEngine(address, workers=2)) as make:
        trainer = make(instance, simulation.algorithm, precision="float32").trainer
        for number in range(1, stacks + 1):
            trainer.train(
                [
                    Training(instance.federation, turn.draw.train, flatten(instance.model), turn.plan[:2], 0)
                    for turn in turns
                ]
            )
            if number % (stacks // 8) == 0:
                sizes = {"workers_mb": [unshared_mb(pid) for pid in workers()], "driver_mb": unshared_mb(os.getpid())}
                rows.append({"stacks": number, **sizes})
                print(rows[-1], flush=True)
    return {"rows": rows, "machine": machine()}


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
    rows = ["| measured | result | pairs |", "|---|---|---|"]
    if pairs := found.get("cost"):
        cpu = [(pair["ray"]["cpu"] + sum(pair["ray"]["workers_cpu"])) / pair["local"]["cpu"] for pair in pairs]
        wall = [pair["ray"]["seconds"] / pair["local"]["seconds"] for pair in pairs]
        uploads = " and ".join(dict.fromkeys(f"{pair['uploads']:,}" for pair in pairs))
        words = f"digits-4, {uploads} uploads: one worker against the local engine, one thread each"
        rows.append(f"| {words}; CPU time of driver and worker | **{_spread(cpu)}** | {len(pairs)} |")
        rows.append(f"| the same; seconds | {_spread(wall)} | {len(pairs)} |")
    if pairs := found.get("gain"):
        ratios = [pair["one"]["seconds"] / pair["two"]["seconds"] for pair in pairs]
        share = median(pair["one"]["training"] / pair["one"]["seconds"] for pair in pairs)
        words = f"fashion-mnist-4, {pairs[0]['uploads']} uploads of {pairs[0]['local_epochs']} epochs, training "
        words += f"{share:.0%} of the time: two workers against one, one core each"
        rows.append(f"| {words}; seconds | **{_spread(ratios)} times** as fast | {len(pairs)} |")
    if kept := found.get("memory"):
        first, last = kept["rows"][0], kept["rows"][-1]
        sizes = [" and ".join(f"{size:.0f}" for size in row["workers_mb"]) for row in (first, last)]
        drivers = [f"{row['driver_mb']:.0f}" for row in (first, last)]
        words = f"memory of two workers after {first['stacks']:,} and after {last['stacks']:,} stacks"
        rows.append(f"| {words} | {sizes[0]} MB, {sizes[1]} MB | - |")
        rows.append(f"| the same, of the driver | {drivers[0]} MB, {drivers[1]} MB | - |")
    if len(rows) == 2:
        return "Not measured yet.\n"
    pairs = [*found.get("cost", []), *found.get("gain", [])]
    notes = [f"In {sum(pair['same_events'] for pair in pairs)} of {len(pairs)} pairs the events were equal to the bit."]
    if loads := [pair["local"]["load"] for pair in found.get("cost", [])]:
        notes.append(f"Other programs ran on the machine (load {min(loads):.0f} to {max(loads):.0f}): trust CPU time.")
    on = (pairs or [found["memory"]])[0]["machine"]
    return "\n".join(rows) + f"\n\n{' '.join(notes)} {on['cpu']}, {on['cores']} cores; torch {on['torch']}.\n"


def _spread(ratios: list[float]) -> str:
    middle = f"{median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
