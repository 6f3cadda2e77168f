"""Was everything synced before it was acknowledged? A kill does not show it; the system calls of the server do.

The server runs under strace. For every answer that says `CDFL-Epoch: n`, the upload and the reply of entry n must have
been synced before they got their names, the folder of the names must have been synced before the database spoke of
them, and the log of the database must have been synced between that and the answer.
"""

import math
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.crash.checks import Report
from benchmarks.crash.clients import wait_for
from benchmarks.crash.cut_uploads import changed
from benchmarks.crash.faults import NotHere
from benchmarks.crash.site import Site
from cdfl import wire
from cdfl.server.store_records import Entry
from tests.server.postgres import Postgres

CALLS = "fsync,fdatasync,rename,renameat,renameat2,link,linkat,write,writev,pwrite64,sendto,sendmsg"
SYNCS = ("fsync", "fdatasync")
NAMING = ("rename", "link")
SHOWN = 2**14  # bytes of what is written: more than a page of SQLite
LINE = re.compile(r"(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>.*)")
FILE = re.compile(r"\d+<([^>]*)>")


@dataclass
class Call:
    """One system call: line numbers in the order in which the kernel saw begin and end."""

    thread: str
    name: str
    text: str  # arguments, as strace shows them: file descriptors with their paths
    begin: int
    end: float = math.inf  # infinite: not ended when the trace did

    @property
    def path(self) -> str:
        """The file of the first argument."""
        found = FILE.match(self.text)
        return found[1] if found else ""


def check_syncs(site: Site, uploads: int, postgres: Postgres | None = None) -> Report:
    """Trace a server while clients upload; then check every answer."""
    report = Report()
    log = site.folder / "strace.log"
    with syncing(postgres) as family:
        server = site.start("--keep-uploads", "--snapshot-every", "1000")
        with traced([server.pid, *family()], log), ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: _upload(site, f"client-{number}"), range(uploads)))
        site.stop()
    calls = read_trace(log)
    with site.open_store() as store:
        entries = list(store.all_entries(0))
    for entry in entries:
        report.findings += [f"entry {entry.epoch}: {finding}" for finding in _check_entry(entry, calls, site)]
    report.expect(len(entries) == uploads, f"{len(entries)} uploads were taken; expected {uploads}")
    syncs = sum(call.name in SYNCS for call in calls)
    report.counts |= {"answers checked": len(entries), "syncs seen": syncs}
    return report


@contextmanager
def syncing(postgres: Postgres | None) -> Iterator[Callable[[], list[int]]]:
    """A PostgreSQL that syncs, which is turned off elsewhere; gives a way to find its processes."""
    if postgres is None:
        yield list
        return
    postgres.stop()
    postgres.start("fsync=on")
    try:
        yield lambda: _family(postgres)
    finally:
        postgres.stop()
        postgres.start()


@contextmanager
def traced(pids: list[int], log: Path) -> Iterator[None]:
    """Write the system calls of some processes, with all their threads and children, to one log."""
    program = shutil.which("strace")
    if program is None:
        raise NotHere("strace is not installed")
    words = ["-f", "-y", "-s", str(SHOWN), "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(log)]
    attach = [word for pid in pids for word in ("-p", str(pid))]
    told = log.with_suffix(".err")
    with told.open("wb") as errors:
        process = subprocess.Popen([program, *words, *attach], stderr=errors)
    try:
        wait_for(lambda: _attached(told) >= len(pids) or process.poll() is not None, 20)
        if process.poll() is not None:
            raise NotHere(f"strace may not trace processes: {told.read_text().strip()}")
        yield
    finally:
        process.terminate()
        process.wait()


def read_trace(log: Path) -> list[Call]:
    """All calls, in the order in which they began."""
    calls: list[Call] = []
    running: dict[str, Call] = {}  # by thread
    for number, line in enumerate(log.read_text(errors="replace").splitlines()):
        found = LINE.match(line)
        if found is None:
            continue
        thread, name, text, resumed = found.groups()
        if resumed and thread in running:
            running.pop(thread).end = number
        elif name:
            calls.append(Call(thread, name, text, begin=number, end=number))
            if line.endswith("<unfinished ...>"):
                calls[-1].end = math.inf
                running[thread] = calls[-1]
    return calls


def _check_entry(entry: Entry, calls: list[Call], site: Site) -> Iterator[str]:
    """What is wrong with the order of the calls for one entry."""
    told = re.compile(rf"HTTP/1.1 200 .*{wire.EPOCH}: {entry.epoch}\\r\\n.*{wire.OUTCOME}", re.IGNORECASE)
    answer = next((call for call in calls if told.search(call.text)), None)
    if answer is None:
        yield "no answer was seen"
        return
    before = [call for call in calls if call.end < answer.begin]
    settled = -1.0
    for name in (entry.upload, entry.base, entry.reply):
        named = next((call for call in before if call.name.startswith(NAMING) and f'/{name}"' in call.text), None)
        if named is None:
            yield f"{name} had no name yet when it was answered"
            continue
        content = [call for call in before if call.name in SYNCS and f'"{call.path}"' in named.text]
        if name != entry.base and not any(call.end < named.begin for call in content):  # that has a second name only
            yield f"the content of {name} was not synced before it got its name"
        folders = [call for call in before if call.name in SYNCS and call.path == str(site.blobs)]
        after = [call.end for call in folders if call.begin > named.end]
        if not after:
            yield f"the folder was not synced after {name} got its name"
        settled = max(settled, min(after, default=-1.0))
    spoken = next((call for call in before if _speaks(call, str(entry.reply), site)), None)
    if spoken is None:
        yield "the database did not reference it when it was answered"
    elif spoken.begin < settled:
        yield "the database spoke of it before its folder was synced"
    elif not any(call.begin > spoken.end and _makes_durable(call, spoken, site) for call in before):
        yield "the log of the database was not synced before it was answered"


def _speaks(call: Call, name: str, site: Site) -> bool:
    """A page of SQLite's log with the name in it, or a message to PostgreSQL."""
    if site.is_sqlite:
        return call.name == "pwrite64" and call.path.endswith("-wal") and name in call.text
    return call.path.startswith("socket:") and name in call.text


def _makes_durable(call: Call, spoken: Call, site: Site) -> bool:
    """A sync of the log of the database; SQLite's, by the thread that wrote it."""
    if site.is_sqlite:
        return call.name in SYNCS and call.path.endswith("-wal") and call.thread == spoken.thread
    return call.name in SYNCS and "/pg_wal/" in call.path


def _upload(site: Site, client_id: str) -> None:
    with httpx.Client(base_url=site.url, headers={wire.CLIENT: client_id}, timeout=60, verify=False) as http:
        got = http.get("/v1/model")
        headers = {wire.KEY: secrets.token_hex(8), wire.BASE_EPOCH: got.headers[wire.EPOCH]}
        headers["Content-Type"] = wire.CONTENT_TYPE
        http.post("/v1/updates", content=changed(got.content), headers=headers).raise_for_status()


def _family(postgres: Postgres) -> list[int]:
    """PostgreSQL and all its processes."""
    assert postgres.process is not None
    pid = postgres.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def _attached(told: Path) -> int:
    return told.read_text().count(" attached")
