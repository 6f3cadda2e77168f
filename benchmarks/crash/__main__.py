"""Claim: no acknowledged upload is lost, none is applied twice, and the models are those of a replay, bit for bit.

python -m benchmarks.crash             100 kills and all faults on SQLite and PostgreSQL; about ten minutes, as root
python -m benchmarks.crash --docs      only writes the table of docs/server.md from benchmarks/results/crash.json
Real `cdfl serve` processes on loopback, real clients in processes of their own, a PostgreSQL of our own. Full and
read-only disks are file systems that are mounted for it, which only root may do. Ends with 1 if anything was wrong.
"""

import argparse
import json
import random
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.crash.campaigns import CAMPAIGNS, Campaigns, Size
from benchmarks.crash.faults import NotHere
from benchmarks.crash.nursery import Nursery
from benchmarks.crash.table import RESULTS, write_docs
from benchmarks.machine import commit, machine
from tests.server.postgres import Postgres, find_binaries


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description="Kill, starve and cut off a server, and look whether it kept its word."
    )
    parser.add_argument("--kills", type=int, default=Size.kills, help="kills of the server, on each database")
    parser.add_argument("--seed", type=int, default=None, help="of the moments; what happens then is up to the machine")
    parser.add_argument("--only", choices=CAMPAIGNS, help="one campaign; nothing is written")
    parser.add_argument("--docs", action="store_true", help="only write the table of the docs")
    chosen = parser.parse_args()
    if not chosen.docs:
        _run_all(chosen)
    if not chosen.only:
        write_docs()


def _run_all(chosen: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # as the servers have it: sums of the replay must have their bits
    chance = random.Random(chosen.seed)
    binaries = find_binaries()
    if binaries is None:
        sys.exit("PostgreSQL is not installed; the campaign needs its initdb and postgres")
    postgres = Postgres(binaries)
    rows = []
    try:
        postgres.start()
        with Nursery() as nursery, tempfile.TemporaryDirectory(prefix="cdfl-crash-") as folder:
            campaigns = Campaigns(nursery, postgres, Path(folder), Size(kills=chosen.kills), chance)
            for name, databases in CAMPAIGNS.items():
                if chosen.only in (None, name):
                    rows += [_row(campaigns, name, database) for database in databases]
        version = str(postgres.execute("SHOW server_version")[0][0])
    finally:
        postgres.delete()
    if not chosen.only:
        databases = {"sqlite": sqlite3.sqlite_version, "postgresql": version}
        stored = {"machine": machine() | databases, "commit": commit(), "campaigns": rows}
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    if any(row["findings"] for row in rows):
        sys.exit(1)


def _row(campaigns: Campaigns, name: str, database: str) -> dict[str, Any]:
    begun = time.monotonic()
    row: dict[str, Any] = {"campaign": name, "database": database}
    try:
        report = campaigns.run(name, database)
        row |= {"counts": report.counts, "findings": report.findings}
    except NotHere as error:
        row |= {"counts": {}, "findings": [f"not run: {error}"]}
    row["seconds"] = round(time.monotonic() - begun)
    print(json.dumps(row, indent=1), flush=True)
    return row


if __name__ == "__main__":
    main()
