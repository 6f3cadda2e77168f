"""Kill, starve and cut off a server under load, and check its store.

Claim: no acknowledged upload is lost, none is applied twice, and a replay of the journal gives the same models, bit for
bit.

Runs `cdfl serve` on loopback, each client in its own process, and its own PostgreSQL. Full and read-only disks are
mounted for it, which needs root. Writes each campaign into benchmarks/results/crash.json when it ends; the exit code
is 1 if anything is wrong. 100 kills and all faults on SQLite and PostgreSQL take about ten minutes.
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
from benchmarks.crash.fork_server import ForkServer
from benchmarks.result_files import commit, machine, read, write
from tests.server.postgres import Postgres, find_binaries


def main() -> None:
    """Run the campaigns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=Size.kills, help="kills on each database; default: 100")
    parser.add_argument("--seed", type=int, default=None, help="seed of the moments of kills and faults")
    parser.add_argument("--only", choices=CAMPAIGNS, nargs="+", help="run these campaigns; keep the results of others")
    _run_all(parser.parse_args())


def _run_all(chosen: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # as in the servers: the replay must round sums alike
    chance = random.Random(chosen.seed)
    binaries = find_binaries()
    if binaries is None:
        sys.exit("PostgreSQL is not installed; install it: the campaign needs initdb and postgres")
    postgres = Postgres(binaries)
    rows = []
    try:
        postgres.start()
        version = str(postgres.execute("SHOW server_version")[0][0])
        versions = {"sqlite": sqlite3.sqlite_version, "postgresql": version}
        with ForkServer() as fork_server, tempfile.TemporaryDirectory(prefix="cdfl-crash-") as folder:
            campaigns = Campaigns(fork_server, postgres, Path(folder), Size(kills=chosen.kills), chance)
            for name, databases in CAMPAIGNS.items():
                if chosen.only is None or name in chosen.only:
                    for database in databases:
                        rows.append(_row(campaigns, name, database))
                        _store(rows[-1], machine() | versions)
    finally:
        postgres.delete()
    if any(row["findings"] for row in rows):
        sys.exit(1)


def _store(row: dict[str, Any], on: dict[str, Any]) -> None:
    """Write a row in place of the one of the same campaign."""
    found = {(each["campaign"], each["database"]): each for each in read("crash", {"campaigns": []})["campaigns"]}
    found[row["campaign"], row["database"]] = row
    order = [(name, database) for name, databases in CAMPAIGNS.items() for database in databases]
    write("crash", {"machine": on, "campaigns": [found[place] for place in order if place in found]})


def _row(campaigns: Campaigns, name: str, database: str) -> dict[str, Any]:
    begun = time.monotonic()
    row: dict[str, Any] = {"campaign": name, "database": database, "commit": commit()}
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
