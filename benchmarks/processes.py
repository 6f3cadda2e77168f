"""Processes of others, run and watched from outside: what they say, their memory, and who else takes the cores."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT = 300  # seconds for one run


class FailedError(Exception):
    """A contender that cannot be installed or does not run; the text is its own last words."""


@dataclass(frozen=True)
class Sample:
    """What a run used at one moment."""

    time: float
    memory: float  # MB of all its processes
    own: float  # CPU seconds of all its processes, so far
    busy: float  # CPU seconds of everything on this machine


def others_cores(samples: list[Sample]) -> float | None:
    """Cores that other processes used meanwhile: with one of two taken, two threads that wait for each other crawl."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    others = (last.busy - first.busy) - (last.own - first.own)
    return round(max(0.0, others / (last.time - first.time)), 2)


def observe(command: list[str], folder: str) -> tuple[dict[str, Any], list[Sample], float]:
    """Run a script and watch it: its one line of JSON, a sample every second, and when it began."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),  # for cdfl.models
        "TMPDIR": folder,
        "RAY_TMPDIR": folder,
        "RAY_worker_niceness": "0",  # Ray's workers would yield to anything else that runs; nobody else's do
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "WANDB_MODE": "disabled",
    }
    out, err = Path(folder) / "out", Path(folder) / "err"
    samples: list[Sample] = []
    used: dict[int, float] = {}  # CPU seconds by process, those that have ended included
    started = time.time()
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen([*loopback_only(), *command], cwd=folder, env=env, stdout=stdout, stderr=stderr)
        while process.poll() is None:
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                members = family(process.pid)
                used.update({pid: max(cpu_seconds(pid), used.get(pid, 0.0)) for pid in members})
                samples.append(Sample(time.time(), sum(map(resident_mb, members)), sum(used.values()), busy_seconds()))
            if time.time() - started > TIME_LIMIT:
                for pid in family(process.pid):
                    os.kill(pid, signal.SIGKILL)
                process.wait()
                raise FailedError(f"it was not done after {TIME_LIMIT} seconds")
    lines = [line for line in out.read_text(errors="replace").splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise FailedError(last_words(err.read_text(errors="replace")) or f"it ended with status {process.returncode}")
    return json.loads(lines[-1]), samples, started


def loopback_only() -> list[str]:
    """A prefix that runs a command with a network of its own that ends at this machine, where the system allows it.

    Ray and torch.distributed listen on every address they find.
    """
    prefix = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    works = shutil.which("unshare") and not subprocess.run([*prefix, "true"], capture_output=True).returncode
    return prefix if works else []


def family(pid: int) -> list[int]:
    """A process and all its descendants, as /proc knows them."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, []))
    return found


def resident_mb(pid: int) -> float:
    """Resident memory of one process; pages that processes share count for each."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    """CPU time that one process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """CPU time that this machine has used for anything."""
    try:
        user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    except OSError:
        return 0.0
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


def last_words(text: str) -> str:
    """What a process said at last, without the paths of this machine."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line] or lines
    return " / ".join(line[:300] for line in errors[-2:]).replace(str(ROOT), ".").replace(str(Path.home()), "~")
