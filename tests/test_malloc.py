"""What a process frees, it gets again without asking the system."""

import platform
import subprocess
import sys

import pytest

from cdfl import malloc

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such options")

BEGIN = """
import ctypes, resource, runpy, sys, threading
from concurrent.futures import ThreadPoolExecutor

keep_freed_memory = runpy.run_path(sys.argv[1])["keep_freed_memory"]
assert {how}
"""

# What a step of a training does: take some large pieces of memory, let go of all of them; here in another thread.
STEPS = """
def step(_):
    pieces = [b"x" * (9 * 2**20) for _ in range(int(sys.argv[2]))]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

with ThreadPoolExecutor(1) as pool:
    list(pool.map(step, range(5)))
    before = faults()
    list(pool.map(step, range(10)))
print((faults() - before) // 10)
"""

# Every thread needs memory while the others do; then glibc tells of its pools, as XML.
POOLS = """
everybody = threading.Barrier(4)

def need(_):
    pieces = [b"x" * 2**20 for _ in range(5)]
    everybody.wait()

with ThreadPoolExecutor(4) as pool:
    list(pool.map(need, range(4)))
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def said(how: str, script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", BEGIN.format(how=how) + script, malloc.__file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own command


def page_faults(how: str, pieces: int = 5) -> int:
    """Page faults a step."""
    return int(said(how, STEPS, str(pieces)))


@glibc
def test_memory_is_kept_from_step_to_step():
    assert page_faults("True") > 1000
    assert page_faults("keep_freed_memory()") < 100


@glibc
def test_as_much_is_kept_as_is_said():
    assert page_faults("keep_freed_memory(64, one_pool=True)", pieces=15) > 1000
    assert page_faults("keep_freed_memory(512, one_pool=True)", pieces=15) < 100


@glibc
def test_one_pool_for_all_threads():
    assert said("keep_freed_memory()", POOLS).count("<heap nr=") > 1
    assert said("keep_freed_memory(one_pool=True)", POOLS).count("<heap nr=") == 1


def test_nothing_happens_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert malloc.keep_freed_memory() is False
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name: object())
    assert malloc.keep_freed_memory() is False
