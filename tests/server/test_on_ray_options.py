"""`cdfl serve --evaluate-on-ray` without Ray, and without a cluster."""

import sys

import pytest

from cdfl.on_ray import RayEngine
from cdfl.server.on_ray.evaluation import evaluators_on_ray

from ..cli.small import call
from .live import Live, near, tiny_instance


def test_without_ray_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    status, words = call("serve", "digits-4", "--open", "--evaluate-on-ray", "--store", tmp_path / "store")
    assert (status, words) == (2, "cdfl: this needs Ray; install it with: pip install 'cdfl[ray]'")
    assert not (tmp_path / "store").exists()


def test_an_address_without_the_flag(tmp_path):
    status, words = call("serve", "digits-4", "--open", "--ray-workers", "2", "--store", tmp_path / "store")
    assert status == 2
    assert "--ray-address and --ray-workers are for --evaluate-on-ray" in words


def test_a_server_starts_without_the_cluster(tmp_path, caplog):
    pytest.importorskip("ray")
    instance = tiny_instance()
    with (
        evaluators_on_ray(instance, RayEngine("127.0.0.1:9")) as used,
        Live(tmp_path / "store", instance, evaluators=used) as server,
    ):
        server.model()
        assert server.update(near(server, 0)).status_code == 200
    said = [line for line in caplog.messages if "cannot be used" in line]
    assert len(said) == 2  # one for uploads, one for clusters
    assert said[0].startswith("the Ray cluster cannot be used: cannot connect to the Ray cluster at 127.0.0.1:9: ")
