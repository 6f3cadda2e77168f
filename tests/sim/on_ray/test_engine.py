"""Clients are trained on a real cluster: a head and a second node, processes on this machine."""

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cdfl
from cdfl.on_ray import RayEngine
from cdfl.run_events import Uploaded
from cdfl.run_folder import RunFolder
from cdfl.scenarios import load_scenario
from cdfl.sim.runner import configure, run_events

from ..world import dropping, make_scenario

pytestmark = pytest.mark.ray

QUICK = {"num_uploads": 60, "num_clients": 20, "local_epochs": 2, "shared_epochs": 2, "separate_epochs": 1}


@pytest.fixture(scope="module")
def here():
    return list(run_events(configure("digits-4", **QUICK)))


def training_processes():
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if place.read_bytes().startswith(b"ray::Worker"):
                found.append(int(place.parent.name))
    return found


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_events_are_those_of_the_local_engine_to_the_bit(cluster, here, workers):
    config = configure("digits-4", **QUICK)
    assert list(run_events(config, engine=RayEngine(cluster.address, workers))) == here


@pytest.mark.parametrize("options", [{"algorithm": "fedem"}, {"preset": "experts", "policy": "sometimes"}])
def test_other_algorithms_and_policies(cluster, options):
    config = configure("digits-4", **QUICK | {"num_uploads": 20}, **options)
    assert list(run_events(config, engine=RayEngine(cluster.address, 2))) == list(run_events(config))


def test_clients_one_after_the_other_with_dropout(cluster):
    config = configure(make_scenario(model=dropping, num_uploads=20), local_epochs=2)
    assert list(run_events(config, engine=RayEngine(cluster.address, 2))) == list(run_events(config))


def test_what_a_user_wrote_travels(cluster, tmp_path):
    (tmp_path / "network_of_mine.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))\n"
    )
    file = tmp_path / "mine.py"
    file.write_text(
        "import cdfl\n"
        "from torch.nn.functional import cross_entropy\n"
        "from network_of_mine import make\n"
        "def loss(outputs, targets):\n"
        "    return 2 * cross_entropy(outputs, targets)\n"
        "clusters = cdfl.scenarios.load_scenario('digits-4').clusters\n"
        "problem = cdfl.Problem(model=make, loss=loss, clusters=clusters)\n"
    )
    options = QUICK | {"num_uploads": 10}
    there = cdfl.run(file, engine=RayEngine(cluster.address, 2), progress=False, **options)
    assert there.events == cdfl.run(file, progress=False, **options).events
    assert there.cluster_models.keys() == {"0°", "90°", "180°", "270°"}


def test_a_worker_that_is_killed_changes_nothing(cluster, here):
    config, killed, told = configure("digits-4", **QUICK), [], []
    for event in run_events(config, engine=RayEngine(cluster.address, 2)):
        told.append(event)
        if isinstance(event, Uploaded) and event.epoch in (10, 30):
            (victim, *_) = training_processes()
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
    assert len(set(killed)) == 2
    assert told == here


def test_a_run_begun_here_is_resumed_there(cluster, here, tmp_path):
    config = configure("digits-4", **QUICK)
    folder = RunFolder.create(tmp_path / "run", config.to_json())
    events = run_events(config, folder)
    for event in events:
        if isinstance(event, Uploaded) and event.epoch == 25:
            break
    events.close()
    assert list(run_events(config, folder, resume=True, engine=RayEngine(cluster.address, 2))) == here
    assert folder.events() == here


def test_an_error_of_the_users_code_comes_out_as_it_is(cluster):
    def loss(outputs, targets):
        if len(targets) == 5:
            raise KeyError("five")
        return torch.nn.functional.cross_entropy(outputs, targets)

    scenario = replace(load_scenario("digits-4"), loss=loss)
    config = configure(scenario, **QUICK, batch_size=5)
    with pytest.raises(KeyError, match="five"):
        list(run_events(config, engine=RayEngine(cluster.address, 1)))
