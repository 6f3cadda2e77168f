"""Time the first and the second run of a process on a GPU, with and without kernels in Triton's cache.

Claim: most of a first run is not training: it compiles kernels if the cache is empty, and loads libraries otherwise.

Two processes run the scenario twice each, one after the other; the first begins with an empty cache of kernels.
Example: python -m benchmarks.gpu_first_run --data-dir data
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.result_files import commit, machine, read, write

RESULT = "first-run-h200"


def main() -> None:
    """Measure both processes, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="fashion-mnist-4", help="name of a scenario; default: fashion-mnist-4")
    parser.add_argument("--num-uploads", type=int, default=2000, help="uploads of a run; default: 2000")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N; cpu to try this script")
    parser.add_argument("--precision", default="bfloat16", help="default: bfloat16")
    parser.add_argument("--data-dir", type=Path, help="folder of the datasets; default: $CDFL_DATA")
    parser.add_argument("--one", action="store_true", help="measure one process; print its numbers")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(process(args)))
        return
    found: dict[str, Any] = {"machine": machine(), "commit": commit(), "scenario": args.scenario}
    found |= {"precision": args.precision, "uploads": args.num_uploads, "processes": {}}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("empty", "filled"):
            command = [sys.executable, "-m", "benchmarks.gpu_first_run", *sys.argv[1:], "--one"]
            environment = os.environ | {"TRITON_CACHE_DIR": cache}
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            found["processes"][name] = json.loads(ran.stdout)
            print(name, found["processes"][name], flush=True)
            write(RESULT, found)


def process(args: argparse.Namespace) -> dict[str, Any]:
    """Measure this process: imports, the start of CUDA, data, and two runs."""
    clock = time.perf_counter
    times = [clock()]
    import torch

    from benchmarks.speed import clocked
    from cdfl.sim.runner import configure, simulations

    times.append(clock())
    torch.zeros(1, device=args.device)
    times.append(clock())
    config = configure(args.scenario, num_uploads=args.num_uploads, device=args.device, precision=args.precision)
    config.scenario.federation(0, args.data_dir).to(args.device)
    times.append(clock())
    names = ("imports", "cuda", "data")
    found: dict[str, Any] = {name: round(times[place + 1] - times[place], 3) for place, name in enumerate(names)}
    for name in ("first", "second"):
        begun = clock()
        (simulation,) = simulations([config], args.data_dir)
        built = clock() - begun
        run = clocked(simulation.events())
        whole, start = clock() - begun, built + run["seconds_to_start"]
        found[name] = {"build": round(built, 3), "to_start": round(start, 3), "whole": round(whole, 3)}
    return found


def table() -> str:
    """Return the table of the page."""
    found = read(RESULT)
    lines = [
        "| cache of kernels | imports, CUDA and data | engines | pre-training | uploads | first run | second run |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, own in found["processes"].items():
        first, second = own["first"], own["second"]
        before = own["imports"] + own["cuda"] + own["data"]
        lines.append(
            f"| {name} | {before:.1f} s | {first['build']:.1f} s | {first['to_start'] - first['build']:.1f} s "
            f"| {first['whole'] - first['to_start']:.1f} s | **{first['whole']:.1f} s** | {second['whole']:.1f} s |"
        )
    on = found["machine"]
    about = f"{found['scenario']}, {found['uploads']:,} uploads, {found['precision']}; {on['gpu']}; torch {on['torch']}"
    return "\n".join([*lines, "", f"{about}, {on['date']}. {_shares(found)}"]) + "\n"


def _shares(found: dict[str, Any]) -> str:
    """Return a second run over its training in the newest profile, and how long the GPU worked."""
    cases = [
        case["fast"].get(found["precision"]) for case in read("speed-h200") if case["scenario"] == found["scenario"]
    ]
    run = [case for case in cases if case is not None][-1]
    whole, training = run["profile"]["everything"], run["profile"]["training of clients"]
    quick = run["warm"]["seconds_to_start"] + run["warm"]["seconds_for_uploads"]
    said = f"A second run over its training, from the profile of {run['warm']['uploads']:,} uploads: "
    said += f"{quick:.1f} s / {training:.1f} s = {quick / training:.2f} ({whole:.1f} s while profiled)."
    if "gpu_500_uploads" in found:
        own = found["gpu_500_uploads"]
        said += f" In 500 uploads the GPU worked {own['busy_ms'] / own['wall_ms']:.0%} of the time."
    return said


if __name__ == "__main__":
    main()
