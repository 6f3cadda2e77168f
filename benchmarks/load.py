"""Measure the server under load.

Claim: 500 clients at once get their answers without an error, and proxy evaluation is most of the cost of an upload.

Every part starts `cdfl serve` in its own process, on SQLite and a folder, with syncs and the default limits (except the
rate of one client). The clients (benchmarks/fleet) run on the same cores, do not train, and upload without a pause. The
paper's CNN needs FashionMNIST ($CDFL_DATA). A part waits until the machine is quiet. If other processes used the cores
meanwhile, it is measured again, and the least disturbed try is kept.

Writes benchmarks/results/load.json. All parts together take about ten minutes.
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

from benchmarks.fleet.measure import measure
from benchmarks.fleet.server import Server
from benchmarks.load_table import DISTURBED, runs_of
from benchmarks.peers import Contender, Setting, Work, run_once
from benchmarks.result_files import ROOT, commit, machine, read, write
from cdfl.cli.init import EXAMPLE
from cdfl.server.connection_limit import raise_file_limit

HERE = Path(__file__).resolve().parent
QUIET = 1.0  # load average of the last minute
UNHURRIED = "--max-rate", "1000"  # requests a second of one client; some clients here make more than the default of 20

CLIENTS, UPDATES = 500, 5000
IDLE, HONEST = 2000, 20
FLOWER = Contender(
    "Flower",
    "exchange_flower.py",
    {
        "exchange": [
            Setting("SuperLink and SuperNodes", {"api": "deployment"}, rounds=4),
            Setting("start_server and start_client, deprecated there", {"api": "grpc"}, rounds=40),
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
    """Serve the example of `cdfl init` (small CNN, digits) to all clients at once, then to one."""
    with serving(EXAMPLE, clients, *UNHURRIED, *options) as server:
        together = measure(server, clients, updates, warm_up=20)
        return {"together": together, "alone": measure(server, 1, max(1, updates // 20))}


def idle(connections: int = IDLE, clients: int = HONEST, updates: int = 50 * HONEST) -> dict[str, Any]:
    """Serve clients while strangers hold connections open; at the end, more than the server allows."""
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
    """Time the stages of an upload: the paper's CNN, 4 clusters, 1,000 proxy images each."""
    with serving(HERE / "fleet" / "paper_setup.py", 4) as server:
        return {"together": measure(server, 4, 60, warm_up=4), "alone": measure(server, 1, 30, warm_up=1)}


def exchanges(updates: int = 600) -> dict[str, Any]:
    """Serve the same CNN without proxy evaluation: receive, check, sync and mix only."""
    with serving(HERE / "fleet" / "blind_setup.py", 8, *UNHURRIED) as server:
        return {str(clients): measure(server, clients, updates, warm_up=20) for clients in (8, 4, 1)}


def others() -> dict[str, Any]:
    """Run the same exchange in Flower and APPFL with 4 clients, each in its own virtual environment."""
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
    """Start a server with a token for each client, in a temporary folder."""
    with (
        tempfile.TemporaryDirectory(prefix="load-") as folder,
        Server(setup, Path(folder), clients, *options) as server,
    ):
        yield server


# -- measuring


def wait_until_quiet(patience: float) -> bool:
    """Wait until the machine is quiet, at most `patience` seconds; return whether it is."""
    deadline = time.monotonic() + patience
    while os.getloadavg()[0] >= QUIET and time.monotonic() < deadline:
        time.sleep(5.0)
    return os.getloadavg()[0] < QUIET


def measured(part: str, patience: float, tries: int) -> dict[str, Any]:
    """Measure one part; try again if other processes used the cores."""
    found: list[dict[str, Any]] = []
    while not found or (disturbance(found[-1]) > DISTURBED and len(found) < tries):
        quiet = wait_until_quiet(patience)
        about: dict[str, Any] = {"began": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}
        about |= {"quiet": quiet, "load_before": [round(load, 2) for load in os.getloadavg()]}
        found.append(about | PARTS[part]())
        found[-1]["load_after"] = [round(load, 2) for load in os.getloadavg()]
        print(f"{part}: others took {disturbance(found[-1]):.2f} cores: {json.dumps(found[-1])}\n", file=sys.stderr)
    return min(found, key=disturbance) | {"tries": len(found)}  # the least disturbed, not the fastest


def disturbance(found: dict[str, Any]) -> float:
    """Return the cores that other processes used meanwhile."""
    return max(run.get("others_cores") or 0.0 for run in runs_of(found))


def store(part: str, found: dict[str, Any]) -> None:
    """Put a part into the result file; keep the rates that stood there as `earlier`."""
    stored = read("load", {})
    if before := stored.get(part):
        rates = {name: run["rate"] for name, run in before.items() if isinstance(run, dict) and "rate" in run}
        found["earlier"] = [*before.get("earlier", []), {"began": before["began"], "commit": before["commit"]} | rates]
    stored |= {"machine": machine(), part: found}
    write("load", stored)


def main() -> None:
    """Measure the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--tries", type=int, default=3, help="tries to measure a part undisturbed")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for part in args.parts or PARTS:
        store(part, measured(part, args.patience, args.tries))


if __name__ == "__main__":
    main()
