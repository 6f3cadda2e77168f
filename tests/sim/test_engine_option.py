"""Which engine a name means, and what to install for it."""

import sys

import pytest

from cdfl.on_ray.connection import INSTALL, RayEngine, find_engine

from ..cli.small import call


def test_names():
    assert find_engine("local") is None
    with pytest.raises(ValueError, match="there is no engine 'spark'; there are local and ray"):
        find_engine("spark")
    with pytest.raises(ValueError, match="address is for the engine `ray` only"):
        find_engine("local", address="10.0.0.1:6379")
    with pytest.raises(ValueError, match="workers is 0; expected a whole number, 1 or more"):
        RayEngine(workers=0)


def test_without_ray_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    with pytest.raises(ModuleNotFoundError) as caught:
        find_engine("ray")
    assert str(caught.value) == INSTALL
    status, words = call("run", "digits-4", "--engine", "ray", "--out", tmp_path / "run")
    assert (status, words) == (2, "cdfl: this needs Ray; install it with: pip install 'cdfl[ray]'")
    assert not (tmp_path / "run").exists()


def test_an_address_where_nobody_listens(tmp_path):
    pytest.importorskip("ray")
    status, words = call("run", "digits-4", "--engine", "ray", "--address", "127.0.0.1:9", "--out", tmp_path / "run")
    assert status == 2
    assert "cannot connect to the Ray cluster at 127.0.0.1:9:" in words
    assert "start one with `ray start --head`" in words
