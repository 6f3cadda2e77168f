"""Measure what two servers on one store cost, apart: CPU seconds of the one that takes uploads and of the owner.

Claim: the owner spends less on an upload that another server has taken than on one of its own, since receiving,
checking and evaluating it are done there.

Two `cdfl serve` and a PostgreSQL that syncs run on this machine, and clients that do not train. They upload to the
server that does not own the store, then to the owner; these runs take turns. CPU seconds of the processes are divided
by the uploads. The paper's CNN needs FashionMNIST ($CDFL_DATA).

Writes benchmarks/results/servers.json. Takes about two minutes.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.fleet.measure import measure
from benchmarks.fleet.server import Server
from benchmarks.load import HERE, UNHURRIED
from benchmarks.processes import cpu_seconds
from benchmarks.result_files import commit, machine, read, write
from cdfl.cli.init import EXAMPLE
from tests.server.postgres import Postgres, find_binaries

SETUPS = {
    "small": ("the small CNN of `cdfl init`, 24 kB", EXAMPLE),
    "paper": ("the paper's CNN, 2.3 MB, 4 x 1,000 proxy images", HERE / "fleet" / "paper_setup.py"),
}
CLIENTS = 8


def run(setup: Path, uploads: int, rounds: int, postgres: Postgres) -> dict[str, Any]:
    """Return milliseconds of CPU an upload, by where it was sent and by process, one a round."""
    found: dict[str, Any] = {}
    database = postgres.new_schema()
    with tempfile.TemporaryDirectory(prefix="servers-") as folder:
        places = [Path(folder) / name for name in ("owner", "other")]
        for place in places:
            place.mkdir()
        with (
            Server(setup, places[0], CLIENTS, *UNHURRIED, database=database) as owner,
            Server(setup, places[1], CLIENTS, *UNHURRIED, database=database) as other,
        ):
            assert (owner.metrics()["cdfl_owner"], other.metrics()["cdfl_owner"]) == (1, 0)
            for _ in range(rounds):
                for name, target in (("other", other), ("owner", owner)):
                    before = _used(owner, other, postgres)
                    rate = measure(target, CLIENTS, uploads)["rate"]
                    used = {part: seconds - before[part] for part, seconds in _used(owner, other, postgres).items()}
                    row = found.setdefault(name, {"rate": []} | {part: [] for part in used})
                    row["rate"].append(rate)
                    for part, seconds in used.items():
                        row[part].append(round(1e3 * seconds / uploads, 3))
    return found


def _used(owner: Server, other: Server, postgres: Postgres) -> dict[str, float]:
    """Return CPU seconds so far."""
    assert postgres.process is not None
    pid = postgres.process.pid
    family = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return {
        "owner": owner.sample().server,
        "other": other.sample().server,
        "database": sum(map(cpu_seconds, family)),
    }


def table() -> str:
    """Return the costs of an upload by where it was sent, and what follows for more cores."""
    stored = read("servers")
    if stored is None:
        return "Not measured yet.\n"
    lines = ["| model | uploads are sent to | the owner | the other server | PostgreSQL |", "|---|---|---|---|---|"]
    sentences = []
    for name, found in stored["setups"].items():
        for sent, words in (("owner", "the owner"), ("other", "the other server")):
            cells = [_cell(found[sent][part]) for part in ("owner", "other", "database")]
            lines.append(f"| {name} | {words} | {' | '.join(cells)} |")
        applies, follows = mean(found["other"]["owner"]), mean(found["owner"]["other"])
        takes = mean(found["other"]["other"])
        alone = mean(found["owner"]["owner"])
        sentences.append(
            f"- {name}: an upload costs the owner {applies:.1f} ms if another server took it, else {alone:.1f} ms. "
            f"So one core of the owner applies at most {1e3 / applies:.0f} uploads a second; the servers that take "
            f"them need {takes / applies:.1f} cores for each core of the owner, plus {follows:.1f} ms an upload for "
            "each further server, which follows all of them."
        )
    on = stored["machine"]
    where = f"{on['cpu']}, {on['cores']} cores, shared with other programs; {on['date']}."
    size = f"{stored['rounds']} runs of {stored['uploads']} uploads"
    runs = f"Milliseconds of CPU an upload; mean ± standard deviation of {size}."
    return "\n".join([*lines, "", runs, "", *sentences, "", where, ""])


def _cell(values: list[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SETUPS, nargs="+", default=list(SETUPS), help="models; default: all")
    parser.add_argument("--uploads", type=int, default=100, help="uploads of a run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    chosen = parser.parse_args()
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL is not installed; install it: the benchmark needs initdb and postgres")
    postgres = Postgres(binaries)
    about = {"machine": machine(), "commit": commit(), "clients": CLIENTS}
    about |= {"uploads": chosen.uploads, "rounds": chosen.rounds}
    setups: dict[str, Any] = {}
    try:
        postgres.start("fsync=on")
        for name, setup in (SETUPS[each] for each in chosen.only):
            setups[name] = run(setup, chosen.uploads, chosen.rounds, postgres)
            write("servers", about | {"setups": setups})
    finally:
        postgres.delete()


if __name__ == "__main__":
    main()
