"""Measure time and memory of the simulator for many clients.

Claim: memory grows with the number of clients, not with the number of uploads; time is linear in uploads. 10,000
clients of the small CNN fit into 8 GB.

Writes benchmarks/results/clients.json. Each case runs in its own process. Takes minutes.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.result_files import commit, machine, write
from cdfl.record import Uploaded
from cdfl.sim.runner import configure, run_events

CASES = [(400, 500), (400, 1000), (400, 2000), (400, 4000), (10_000, 10_000)]  # clients, uploads


def main() -> None:
    """Run all cases, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, nargs=2, metavar=("CLIENTS", "UPLOADS"), help="run this; print the numbers")
    case = parser.parse_args().case
    if case:
        print(json.dumps(measure(*case)))
        return
    rows = []
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.clients", "--case", *map(str, case)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(ran.stdout))
        print(rows[-1], flush=True)
    write("clients", {"machine": machine(), "commit": commit(), "rows": rows})


def measure(clients: int, uploads: int) -> dict[str, float]:
    """Run digits-4 with one local epoch; record memory after a quarter of the uploads and at the end."""
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
    """Return the megabytes that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20)


if __name__ == "__main__":
    main()
