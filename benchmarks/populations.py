"""Measure memory and time of the simulator for up to a million clients.

Claim: a client that sleeps costs a few hundred bytes, and the cost of an upload does not depend on the number of
clients.

Data of `digits-4`, its small CNN (24 kB), 8 to 16 samples and one local epoch for each upload. `uniform`: every turn
belongs to any client, so many are active. `few-active`: four clients take turns, then the next four. Each run has a
process of its own and one thread. Time is CPU time from the first training on, without pre-training and joins. Writes
benchmarks/results/populations.json after each run.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from benchmarks.result_files import commit, machine, read, write
from cdfl.data import Sizes
from cdfl.run_events import Uploaded
from cdfl.scenarios import load_scenario
from cdfl.sim import simulation as simulations_module
from cdfl.sim.engine import Training
from cdfl.sim.runner import configure, simulations

SIZES = Sizes(low=8, high=16, test=20, pretraining=100, proxy=50)
UPLOADS = 1000
# clients, time model, uploads, megabytes of models in memory (None: as usual)
CASES: list[tuple[int, str, int, float | None]] = [
    *[(clients, kind, UPLOADS, None) for kind in ("uniform", "few-active") for clients in (10**3, 10**4, 10**5, 10**6)],
    (10**5, "uniform", UPLOADS, 0),
]
LONG: tuple[int, str, int, float | None] = (10**5, "uniform", 15_000, None)  # most models lie in the file


def main() -> None:
    """Run all cases in rounds, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case; default: 3")
    parser.add_argument("--case", help="run this one, as JSON, and print its numbers")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(*json.loads(args.case))))
        return
    found: dict[str, Any] = {"machine": machine(), "commit": commit(), "rows": []}
    for seed in range(args.rounds):
        for case in [*CASES, *([LONG] if seed == args.rounds - 1 else [])]:
            command = [sys.executable, "-m", "benchmarks.populations", "--case", json.dumps([*case, seed])]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            found["rows"].append(json.loads(ran.stdout))
            print(found["rows"][-1], flush=True)
            write("populations", found)


def measure(clients: int, kind: str, uploads: int, awake_mb: float | None, seed: int) -> dict[str, Any]:
    """Run once."""
    if awake_mb is not None:
        simulations_module.AWAKE_BYTES = int(awake_mb * 2**20)
    scenario = replace(load_scenario("digits-4"), sizes=SIZES)
    config = configure(
        scenario, num_clients=clients, num_uploads=uploads, time_model=kind, local_epochs=1, seed=seed, device="cpu"
    )
    (simulation,) = simulations([config])
    begun, before, joined = time.process_time(), _resident(), 0.0
    train = simulation.engines.trainer.train

    def watched(trainings: Sequence[Training]) -> Tensor:
        nonlocal joined
        joined = joined or time.process_time()
        return train(trainings)

    simulation.engines.trainer.train = watched  # type: ignore[method-assign]
    for _ in simulation.events():
        pass
    ended = time.process_time()
    return {
        "clients": clients,
        "time_model": kind,
        "uploads": uploads,
        "awake_mb": awake_mb,
        "seed": seed,
        "uploaded": len({event.client for event in simulation.emitted if isinstance(event, Uploaded)}),
        "mb_without_clients": before,
        "mb_at_the_end": _resident(),
        "mb_peak": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "mb_in_file": round(simulation.store.file.num_bytes / 2**20, 1),
        "seconds_to_first_training": round(joined - begun, 2),
        "ms_per_upload": round(1e3 * (ended - joined) / uploads, 3),
    }


def table() -> str:
    """Return the table of the page: medians over rounds, extremes in brackets."""
    found = read("populations")
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in found["rows"]:
        key = row["clients"], row["time_model"], row["uploads"], row["awake_mb"]
        cases.setdefault(key, []).append(row)
    lines = [
        "| clients | time model | uploads | peak memory | in the file | CPU time of an upload | to 1,000 clients |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for (clients, kind, uploads, awake), rows in cases.items():
        base = {row["seed"]: row for row in cases.get((1000, kind, UPLOADS, None), [])}
        ratios = [row["ms_per_upload"] / base[row["seed"]]["ms_per_upload"] for row in rows]
        times = [row["ms_per_upload"] for row in rows]
        note = ", no model in memory" if awake == 0 else ""
        lines.append(
            f"| {clients:,} | {kind}{note} | {uploads:,} | {max(row['mb_peak'] for row in rows):,} MB "
            f"| {max(row['mb_in_file'] for row in rows):,.0f} MB | {_spread(times, 2)} ms | {_spread(ratios, 2)} |"
        )
    on = found["machine"]
    return (
        "\n".join([*lines, "", f"{on['cpu']}, {on['cores']} cores, one thread; torch {on['torch']}, {on['date']}."])
        + "\n"
    )


def _spread(values: list[float], digits: int) -> str:
    middle = f"{median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def _resident() -> int:
    """Return the megabytes that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20)


if __name__ == "__main__":
    main()
