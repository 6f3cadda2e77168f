"""Claim: 500 clients at once get their answers without an error, and all but proxy evaluation costs little.

python benchmarks/load.py                  measure everything, in about ten minutes; store benchmarks/results/load.json
python benchmarks/load.py fleet idle       only these parts; the others stay as they are
python benchmarks/load.py --docs           write the tables in docs/server.md from the result file

Every part starts `cdfl serve` in a process of its own, on SQLite and a folder, everything synced, with its default
limits (but for the rate of one client). Clients (benchmarks/fleet) share the cores with it, do not train, and do not
wait between updates. The paper's CNN needs FashionMNIST (CDFL_DATA). A part waits up to --patience seconds until the
machine is quiet; where others used the cores meanwhile it is measured again, and the least disturbed try is kept.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleet.measure import SEED, measure
from fleet.server import Server
from load_table import DISTURBED, RESULTS, runs_of, write_docs
from machine import commit, machine
from peers import Contender, Setting, Work, run_once
from processes import ROOT

from cdfl.cli.init import EXAMPLE
from cdfl.server.connections import raise_file_limit

HERE = Path(__file__).resolve().parent
QUIET = 1.0  # load average of the last minute
UNHURRIED = "--max-rate", "1000"  # requests a second of one client: some of these make more than the default of 20

CLIENTS, UPDATES = 500, 5000
IDLE, HONEST = 2000, 20
FLOWER = Contender(
    "Flower",
    "exchange_flower.py",
    {
        "exchange": [
            Setting("SuperLink and SuperNodes", {"api": "deployment"}, rounds=4),
            Setting("start_server and start_client, which it calls deprecated", {"api": "grpc"}, rounds=40),
        ]
    },
    ("flwr[simulation]==1.41.0",),
)
APPFL = Contender(
    "APPFL",
    "exchange_appfl.py",
    {
        "exchange": [
            Setting("its default", {"optimize_memory": True}, rounds=5),
            Setting("optimize_memory off", {"optimize_memory": False}, rounds=10),
        ]
    },
    ("appfl==1.12.0",),
)


# -- parts


def fleet(clients: int = CLIENTS, updates: int = UPDATES, *options: str) -> dict[str, Any]:
    """The example of `cdfl init` (small CNN, digits): all clients at once, then one of them alone."""
    with serving(EXAMPLE, clients, *UNHURRIED, *options) as server:
        together = measure(server, clients, updates, warm_up=20)
        return {"together": together, "alone": measure(server, 1, max(1, updates // 20))}


def idle(connections: int = IDLE, clients: int = HONEST, updates: int = 50 * HONEST) -> dict[str, Any]:
    """Honest clients while strangers hold connections open; in the end, more of them than the server allows."""
    raise_file_limit(connections + 1000)
    with serving(EXAMPLE, clients, *UNHURRIED) as server:
        found = {
            "nobody else": measure(server, clients, updates, warm_up=clients),
            "idle": measure(server, clients, updates, idle=connections),
        }
    limit = str(connections // 2)
    with serving(EXAMPLE, clients, *UNHURRIED, "--max-connections", limit) as server:
        return found | {"idle, half are allowed": measure(server, clients, updates, warm_up=clients, idle=connections)}


def paper() -> dict[str, Any]:
    """The paper's CNN, 4 clusters, 1,000 proxy images each: where the time of an update goes."""
    with serving(HERE / "fleet" / "paper_setup.py", 4) as server:
        return {"together": measure(server, 4, 60, warm_up=4), "alone": measure(server, 1, 30, warm_up=1)}


def exchanges(updates: int = 600) -> dict[str, Any]:
    """The same CNN with nothing to evaluate: what a server can move, check, sync and mix."""
    with serving(HERE / "fleet" / "blind_setup.py", 8, *UNHURRIED) as server:
        return {str(clients): measure(server, clients, updates, warm_up=20) for clients in (8, 4, 1)}


def others() -> dict[str, Any]:
    """The same exchange in Flower and APPFL, 4 clients, each framework in its own virtual environment."""
    work = Work("cnn", "", (1, 28, 28), samples=0, epochs=1, batch_size=1, clients=4, rounds=5)
    rows = [
        run_once(contender, setting, work, Path(), ROOT / ".venv-peers")
        for contender in (FLOWER, APPFL)
        for setting in contender.settings["exchange"]
    ]
    return {"rows": rows}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "fleet": fleet,
    "idle": idle,
    "paper": paper,
    "exchanges": exchanges,
    "others": others,
}


@contextmanager
def serving(setup: Path, clients: int, *options: str) -> Iterator[Server]:
    """A server with a token for so many clients, in a folder that is deleted afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="load-") as folder,
        Server(setup, Path(folder), clients, *options) as server,
    ):
        yield server


# -- measuring


def wait_until_quiet(patience: float) -> bool:
    """Wait until nobody else uses the machine, but not without end; is it quiet?"""
    deadline = time.monotonic() + patience
    while os.getloadavg()[0] >= QUIET and time.monotonic() < deadline:
        time.sleep(5.0)
    return os.getloadavg()[0] < QUIET


def measured(part: str, patience: float, tries: int) -> dict[str, Any]:
    """One part, with what is to be known of when it was measured; again, where others took the cores meanwhile."""
    found: list[dict[str, Any]] = []
    while not found or (disturbance(found[-1]) > DISTURBED and len(found) < tries):
        quiet = wait_until_quiet(patience)
        about: dict[str, Any] = {"began": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}
        about |= {"quiet": quiet, "load_before": [round(load, 2) for load in os.getloadavg()]}
        found.append(about | PARTS[part]())
        found[-1]["load_after"] = [round(load, 2) for load in os.getloadavg()]
        print(f"{part}: others took {disturbance(found[-1]):.2f} cores: {json.dumps(found[-1])}\n", file=sys.stderr)
    return min(found, key=disturbance) | {"tries": len(found)}  # the least disturbed, whatever its speed


def disturbance(found: dict[str, Any]) -> float:
    """Cores that other processes used meanwhile."""
    return max(run.get("others_cores") or 0.0 for run in runs_of(found))


def store(part: str, found: dict[str, Any]) -> None:
    """Put a part into the result file; of what stood there the rates stay."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if before := stored.get(part):
        rates = {name: run["rate"] for name, run in before.items() if isinstance(run, dict) and "rate" in run}
        found["earlier"] = [*before.get("earlier", []), {"began": before["began"], "commit": before["commit"]} | rates]
    stored |= {"machine": machine(), "seed": SEED, part: found}
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all, if none is named")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--tries", type=int, default=3, help="to measure a part without being disturbed")
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if args.docs:
        write_docs()
        return
    for part in args.parts or PARTS:
        store(part, measured(part, args.patience, args.tries))


if __name__ == "__main__":
    main()
