"""Faults that a server must survive: it refuses with 503 and Retry-After, and recovers by itself."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.crash.checks import Report, settle
from benchmarks.crash.clients import Load, wait_for
from benchmarks.crash.cut_uploads import Cutter
from benchmarks.crash.site import Site
from tests.server.postgres import Postgres

PATIENCE = 60.0  # seconds that a server may take to recover
FILLER = "filler"
Fault = Callable[[Site, Load], AbstractContextManager[Callable[[], object]]]


class NotHere(Exception):  # noqa: N818
    """Such a fault cannot be made on this machine, or by this user."""


def _refuses_more(load: Load, before: int) -> bool:
    return load.refusals() > before


def live_through(site: Site, fault: Fault, times: int, clients: int, chance: random.Random) -> Report:
    """Let a fault come and go while clients upload; afterwards every client must succeed with the same server."""
    report, recovery = Report(), []
    server = site.start("--snapshot-every", "5")
    first, _ = site.recovered()
    load = Load(site, clients)
    for _ in range(times):
        load.wait_for_uploads(each=2)
        refused = load.refusals()
        with fault(site, load) as renew:
            wait_for(partial(_refuses_more, load, refused), PATIENCE, renew)
            time.sleep(chance.uniform(0, 1))
            report.expect(server.is_alive and site.lives(), "the server does not live through it")
            wait_for(lambda: not site.is_ready(), PATIENCE, renew)
        recovery.append(load.wait_for_uploads(each=1, seconds=PATIENCE))
        report.expect(server.is_alive, "the server does not live through it")
        wait_for(site.is_ready, PATIENCE)
    load.finish()
    report.counts |= {"times": times, "slowest recovery, seconds": round(max(recovery), 1)}
    settle(site, first, report)
    return report


# -- disks


@contextmanager
def small_disk(folder: Path, megabytes: int = 32) -> Iterator[Path]:
    """Mount a small file system that can be filled."""
    folder.mkdir(parents=True)
    try:
        _mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError):
        raise NotHere("only a user who may mount file systems can make a small one") from None
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full_disk(site: Site, _: Load) -> Iterator[Callable[[], object]]:
    """Not a byte is left on the disk of the blobs; of SQLite, on that of the database as well."""
    filler = site.blobs.parent / FILLER

    def fill() -> None:
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

    fill()
    try:
        yield fill  # the server deletes what it no longer needs, and then there is room again
    finally:
        filler.unlink()


@contextmanager
def read_only_disk(site: Site, _: Load) -> Iterator[Callable[[], object]]:
    """The file system of the blobs is mounted read-only."""

    def is_mounted() -> bool:
        try:
            _mount("-o", "remount,ro", str(site.blobs.parent))
        except subprocess.CalledProcessError:  # a file is just being written
            return False
        return True

    wait_for(is_mounted, PATIENCE)
    try:
        yield lambda: None
    finally:
        _mount("-o", "remount,rw", str(site.blobs.parent))


@contextmanager
def immutable_folder(site: Site, _: Load) -> Iterator[Callable[[], object]]:
    """Make all files of the store immutable, including SQLite's own: even root cannot create, rename or write one.

    The shared memory of SQLite's processes is left out: the system kills a process that writes to a mapped file that
    became immutable.
    """
    store = Path(site.database)
    paths = [store, store / "store.db", store / "store.db-wal", site.blobs, site.blobs / "spool"]
    _chattr("+i", paths)
    try:
        yield lambda: None
    finally:
        _chattr("-i", paths)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def _chattr(change: str, paths: list[Path]) -> None:
    if shutil.which("chattr") is None:
        raise NotHere("there is no chattr")
    done = subprocess.run(["chattr", change, *map(str, paths)], capture_output=True, text=True)
    if done.returncode:
        subprocess.run(["chattr", "-i", *map(str, paths)], capture_output=True)
        raise NotHere(done.stderr.strip())


# -- the database


def away(postgres: Postgres) -> Fault:
    """PostgreSQL is stopped at once, as by a crash, and started again."""

    @contextmanager
    def fault(_: Site, __: Load) -> Iterator[Callable[[], object]]:
        postgres.stop(signal.SIGQUIT)
        try:
            yield lambda: None
        finally:
            postgres.start()

    return fault


# -- the other side


def cut_connections(site: Site, cuts: int, clients: int, chance: random.Random) -> Report:
    """Uploads end in the middle, again and again, while others go on; complete at last, each counts once."""
    report = Report()
    server = site.start("--snapshot-every", "5")
    first, _ = site.recovered()
    load = Load(site, clients)
    cutter = Cutter(site, "cutter", chance)
    cutter.upload_through_cuts(cuts)
    load.wait_for_uploads(each=1)
    load.finish()
    spool = site.blobs / "spool"
    wait_for(lambda: not any(spool.iterdir()), PATIENCE)
    report.expect(server.is_alive, "the server does not live through it")
    report.counts |= {"cuts": cuts, "uploads that were cut": cutter.uploads, **cutter.counts}
    settle(site, first, report)
    return report


def killed_clients(site: Site, kills: int, clients: int, chance: random.Random) -> Report:
    """Clients are killed in the middle of a reply, and at any other moment; the next ones go on with their state."""
    report, in_reply = Report(), 0
    server = site.start("--snapshot-every", "5")
    first, _ = site.recovered()
    load = Load(site, clients, dies=0.3)
    while load.deaths < kills:
        time.sleep(chance.uniform(0, 0.6))
        in_reply += load.revive()
        load.kill(f"client-{chance.randrange(clients)}")
        load.revive()
    load.finish()
    report.expect(server.is_alive, "the server does not live through it")
    report.counts |= {"kills": load.deaths, "in the middle of a reply": in_reply}
    settle(site, first, report)
    return report
