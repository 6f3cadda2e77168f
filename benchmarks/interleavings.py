"""How many steps a second the simulation of the service makes, each a choice of what happens next.

Claim: a thousand interleavings of requests, threads, clock, disk and command line take seconds, so many can be tried.

Runs seeds of `tests/server/simulated.py` on a file system in memory, if there is one, and writes
benchmarks/results/interleavings.json: `python -m benchmarks.interleavings`.
"""

import argparse
import logging
import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from benchmarks.result_files import machine, read, write
from cdfl.server import database_engine
from tests.server.simulated import simulate

MEMORY = Path("/dev/shm")


def measure(seeds: range) -> dict[str, int | float]:
    """Run seeds; an error names the one that fails."""
    counts: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    try:
        begun, cpu = time.perf_counter(), time.process_time()
        for seed in seeds:
            world = simulate(folder / str(seed), seed)
            counts += Counter(
                steps=len(world.trace),
                disk_steps=len(world.disk.log),
                crashes=world.crashes,
                uploads=world.engine.store.number,
                withdrawn=len(world.withdrawn),
            )
            shutil.rmtree(folder / str(seed))
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"seeds": len(seeds), **counts, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}


def table() -> str:
    """Return what was simulated, in a sentence."""
    found = read("interleavings")
    if found is None:
        return "Not measured yet.\n"
    rate = found["steps"] / found["cpu_seconds"]
    return (
        f"{found['seeds']:,} seeds: {found['steps']:,} steps of the scheduler, {rate:.0f} for each second of one core; "
        f"{found['disk_steps']:,} steps of the disk, {found['crashes']:,} deaths of the server, {found['uploads']:,} "
        f"entries of the journal, {found['withdrawn']:,} uploads whose client was forgotten or revoked on the way; "
        f"0 findings. {found['machine']['cpu']}, Python {found['machine']['python']}.\n"
    )


def main() -> None:
    """Run the seeds of the command line, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # the simulated disk knows what is synced
    database_engine.SQLITE = ("journal_mode = WAL", "synchronous = OFF", "secure_delete = ON")
    write("interleavings", measure(range(given.first, given.first + given.seeds)) | {"machine": machine()})


if __name__ == "__main__":
    main()
