"""`keep_freed_memory` sets glibc's options where there is glibc, and does nothing elsewhere."""

import sys
from types import SimpleNamespace

import pytest

from cdfl import malloc_options
from cdfl.malloc_options import ARENA_MAX, MB, MMAP_THRESHOLD, TOP_PAD, TRIM_THRESHOLD, keep_freed_memory


def set_library(monkeypatch, platform="linux", **functions):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(malloc_options.ctypes, "CDLL", lambda name: SimpleNamespace(**functions))


@pytest.mark.parametrize("one_pool", [False, True])
def test_options_are_set(monkeypatch, one_pool):
    options = {}
    set_library(monkeypatch, mallopt=lambda option, value: options.update({option: value}) or 1)
    assert keep_freed_memory(64, one_pool=one_pool)
    assert options.pop(ARENA_MAX, None) == (1 if one_pool else None)
    assert options == {MMAP_THRESHOLD: 32 * MB, TRIM_THRESHOLD: 64 * MB, TOP_PAD: 64 * MB}


def test_a_refused_option_is_reported(monkeypatch):
    set_library(monkeypatch, mallopt=lambda option, value: 0)
    assert not keep_freed_memory()


def test_nothing_happens_without_glibc(monkeypatch):
    set_library(monkeypatch, "darwin", mallopt=lambda option, value: 1)
    assert not keep_freed_memory()
    set_library(monkeypatch)
    assert not keep_freed_memory()
