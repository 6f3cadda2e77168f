"""What a process frees, it gets again without asking the system."""

import platform
import subprocess
import sys

import pytest

from cdfl.sim import memory

# What a step of a training does: take some large pieces of memory, let go of all of them; here in another thread.
STEPS = """
import resource, runpy, sys
from concurrent.futures import ThreadPoolExecutor

if sys.argv[2] == "keep":
    assert runpy.run_path(sys.argv[1])["keep_freed_memory"]()

def step(_):
    pieces = [b"x" * (9 * 2**20) for _ in range(5)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

with ThreadPoolExecutor(1) as pool:
    list(pool.map(step, range(5)))
    before = faults()
    list(pool.map(step, range(10)))
print((faults() - before) // 10)
"""


def page_faults(how):
    """Page faults a step."""
    command = [sys.executable, "-c", STEPS, memory.__file__, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603 - our own command


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such options")
def test_memory_is_kept_from_step_to_step():
    assert page_faults("keep") < 100
    assert page_faults("as usual") > 1000


def test_nothing_happens_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory.keep_freed_memory() is False
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert memory.keep_freed_memory() is False
