"""All campaigns, on both databases, by name."""

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.crash import faults
from benchmarks.crash.checks import Report
from benchmarks.crash.fork_server import ForkServer
from benchmarks.crash.front_ends import kill_either
from benchmarks.crash.kills import kill_often
from benchmarks.crash.site import Site
from benchmarks.crash.syncs import check_syncs
from tests.server.postgres import Postgres

DATABASES = ("sqlite", "postgresql")
CAMPAIGNS = {  # name -> databases
    "server killed": DATABASES,
    "disk full": DATABASES,
    "disk read-only": DATABASES,
    "folder immutable": ("sqlite",),  # the files of the database among them
    "database away": ("postgresql",),
    "connection cut": DATABASES,
    "client killed": DATABASES,
    "one of two servers killed": ("postgresql",),
    "synced before acknowledged": DATABASES,
}


@dataclass(frozen=True)
class Size:
    """The size of a campaign."""

    kills: int = 100  # of a server at its work; half as many again come while it starts
    faults: int = 10  # times that disk or database go away
    cuts: int = 200  # of connections
    client_kills: int = 50
    server_kills: int = 50  # of either of two servers on one store
    pauses: int = 5  # of the one that owns it
    traced: int = 40  # uploads whose system calls are traced
    clients: int = 5


class Campaigns:
    """Run campaigns, each in its own folder and database."""

    def __init__(
        self, fork_server: ForkServer, postgres: Postgres, folder: Path, size: Size, chance: random.Random
    ) -> None:
        self.fork_server, self.postgres, self.folder, self.size, self.chance = (
            fork_server,
            postgres,
            folder,
            size,
            chance,
        )

    def run(self, name: str, database: str) -> Report:
        """Run one; NotHere if this machine cannot."""
        folder = self.folder / f"{database}-{name.replace(' ', '-')}"
        folder.mkdir(parents=True)
        try:
            return self._run(name, database, folder)
        finally:
            self.fork_server.end_all()

    def _run(self, name: str, database: str, folder: Path) -> Report:
        if name.startswith("disk"):
            with faults.small_disk(folder / "disk") as disk:
                return self._on_disk(name, database, folder, disk)
        site, size = self._site(database, folder, folder / "store"), self.size
        if name == "server killed":
            return kill_often(site, size.kills, size.clients, self.chance)
        if name == "one of two servers killed":
            sites = [site, self._site(database, folder / "second", folder / "store", place=site.database)]
            return kill_either(sites, size.server_kills, size.pauses, size.clients, self.chance)
        if name == "connection cut":
            return faults.cut_connections(site, size.cuts, size.clients, self.chance)
        if name == "client killed":
            return faults.killed_clients(site, size.client_kills, size.clients, self.chance)
        if name == "synced before acknowledged":
            return check_syncs(site, size.traced, None if site.is_sqlite else self.postgres)
        fault = {"folder immutable": faults.immutable_folder, "database away": faults.away(self.postgres)}[name]
        return faults.live_through(site, fault, size.faults, size.clients, self.chance)

    def _on_disk(self, name: str, database: str, folder: Path, disk: Path) -> Report:
        """Put SQLite on the full disk too; it cannot lie on a disk that turns read-only."""
        if name == "disk full":
            site, fault = self._site(database, folder, disk), faults.full_disk
        else:
            site, fault = self._site(database, folder, folder / "store", blobs=disk / "blobs"), faults.read_only_disk
        return faults.live_through(site, fault, self.size.faults, self.size.clients, self.chance)

    def _site(
        self, database: str, folder: Path, store: Path, blobs: Path | None = None, place: str | None = None
    ) -> Site:
        place = place or (str(store) if database == "sqlite" else self.postgres.new_schema())
        return Site(self.fork_server, folder, place, blobs or store / "blobs")
