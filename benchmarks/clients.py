"""Claim: memory follows the number of clients' models, not of stacks or uploads; time is linear in uploads.

python benchmarks/clients.py     10,000 clients of the small CNN within 8 GB, and a growing number of uploads; minutes
Writes benchmarks/results/clients.json. Each case runs in a process of its own, whose peak memory is reported.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from machine import commit, machine

from cdfl.record import Uploaded
from cdfl.sim.runner import configure, run_events

RESULTS = Path(__file__).resolve().parent / "results" / "clients.json"
CASES = [(400, 500), (400, 1000), (400, 2000), (400, 4000), (10_000, 10_000)]  # clients, uploads


def main() -> None:
    """Run all cases, or the one that the command line names."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(*map(int, sys.argv[1:]))))
        return
    rows = []
    for case in CASES:
        ran = subprocess.run([sys.executable, __file__, *map(str, case)], capture_output=True, text=True, check=True)
        rows.append(json.loads(ran.stdout))
        print(rows[-1], flush=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "commit": commit(), "rows": rows}, indent=1) + "\n")


def measure(clients: int, uploads: int) -> dict[str, float]:
    """Run digits-4 with one local epoch, and look at memory on the way."""
    config = configure("digits-4", num_clients=clients, num_uploads=uploads, local_epochs=1, device="cpu")
    begun = time.perf_counter()
    memory = []
    for event in run_events(config):
        if isinstance(event, Uploaded) and event.epoch in (uploads // 4, uploads):
            memory.append(_resident())
    return {
        "clients": clients,
        "uploads": uploads,
        "seconds": round(time.perf_counter() - begun, 1),
        "mb_after_a_quarter": memory[0],
        "mb_at_the_end": memory[-1],
        "mb_peak": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _resident() -> int:
    """Megabytes this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20)


if __name__ == "__main__":
    main()
