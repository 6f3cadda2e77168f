"""Run other programs and observe them: output, memory, and the cores that anything else uses."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.result_files import ROOT

TIME_LIMIT = 300  # seconds for one run


class FailedError(Exception):
    """A contender cannot be installed or fails; the text is its last output."""


@dataclass(frozen=True)
class Sample:
    """What a run used at one moment."""

    time: float
    memory: float  # MB of all its processes
    own: float  # CPU seconds of all its processes, so far
    busy: float  # CPU seconds of everything on this machine


def others_cores(samples: list[Sample]) -> float | None:
    """Return the cores that other processes used meanwhile."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    others = (last.busy - first.busy) - (last.own - first.own)
    return round(max(0.0, others / (last.time - first.time)), 2)


def observe(command: list[str], folder: str) -> tuple[dict[str, Any], list[Sample], float]:
    """Run a script; return its line of JSON, a sample for each second, and when it began."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),  # for cdfl.models
        "TMPDIR": folder,
        "RAY_TMPDIR": folder,
        "RAY_worker_niceness": "0",  # else Ray's workers yield to every other process
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
                raise FailedError(f"not done after {TIME_LIMIT} seconds")
    lines = [line for line in out.read_text(errors="replace").splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise FailedError(last_words(err.read_text(errors="replace")) or f"ended with status {process.returncode}")
    return json.loads(lines[-1]), samples, started


def loopback_only() -> list[str]:
    """Return a prefix that runs a command in a network namespace with loopback only, if the system allows it.

    Ray and torch.distributed listen on every address they find.
    """
    prefix = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    works = shutil.which("unshare") and not subprocess.run([*prefix, "true"], capture_output=True).returncode
    return prefix if works else []


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
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
    """Return the resident memory of one process; shared pages count for each process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that one process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Return the CPU seconds that this machine has used."""
    try:
        user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    except OSError:
        return 0.0
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


def last_words(text: str) -> str:
    """Return the last errors in a log, without local paths."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line] or lines
    return " / ".join(line[:300] for line in errors[-2:]).replace(str(ROOT), ".").replace(str(Path.home()), "~")
