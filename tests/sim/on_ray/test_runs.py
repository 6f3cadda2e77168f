"""Whole runs are spread over a real cluster."""

import json
import os
import re
import signal
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch

import cdfl
from cdfl.on_ray import RayEngine
from cdfl.run_events import Finished, Uploaded
from cdfl.run_folder import RunFolder
from cdfl.sim import checkpoint
from cdfl.sim.runner import compare_events, configure, run_events

from ...cli.small import call, scenario_file
from .test_engine import QUICK

pytestmark = pytest.mark.ray


def running():
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if place.read_bytes().startswith(b"ray::run_remotely"):
                found.append(int(place.parent.name))
    return found


@pytest.fixture(scope="module")
def configs():
    return [configure("digits-4", algorithm=name, seed=seed, **QUICK) for seed in (0, 1) for name in ("cdfl", "fedem")]


@pytest.fixture(scope="module")
def alone(configs):
    return [list(run_events(config)) for config in configs]


def by_run(stream, count):
    events = [[] for _ in range(count)]
    for which, event in stream:
        events[which].append(event)
    return events


def test_each_run_has_the_events_of_the_run_alone_also_if_workers_are_killed(cluster, configs, alone, tmp_path):
    folders = [RunFolder.create(tmp_path / str(which), config.to_json()) for which, config in enumerate(configs)]
    ended, killed = {}, 0
    stream = compare_events(
        configs, folders, engine=RayEngine(cluster.address, 2), on_end=ended.__setitem__, personal=True
    )
    events = [[] for _ in configs]
    for which, event in stream:
        events[which].append(event)
        if isinstance(event, Uploaded) and event.epoch == 20 and killed < 2:
            killed += 1
            os.kill(running()[0], signal.SIGKILL)
    assert killed == 2
    assert events == alone == [folder.events() for folder in folders]
    assert [len(ended[which].personal) for which in range(len(configs))] == [20] * 4
    for which, folder in enumerate(folders):
        held = cdfl.load(folder.path).cluster_models["90°"]
        assert torch.equal(held[0].weight, ended[which].module(ended[which].clusters[1])[0].weight)
        assert not checkpoint.exists(folder.path)


def test_an_interrupted_comparison_is_resumed(cluster, configs, alone, tmp_path):
    folders = [RunFolder.create(tmp_path / str(which), config.to_json()) for which, config in enumerate(configs)]
    with closing(compare_events(configs, folders, engine=RayEngine(cluster.address, 2))) as stream:
        for _, event in stream:
            if isinstance(event, Finished):
                break
    told = by_run(compare_events(configs, folders, resume=True, engine=RayEngine(cluster.address, 2)), len(configs))
    assert told == alone == [folder.events() for folder in folders]


def test_the_command_shows_one_table(cluster, tmp_path):
    options = ["--algorithms", "cdfl,local", "--seeds", 2, "--out", tmp_path / "runs"]
    engine = ["--engine", "ray", "--address", cluster.address]
    status, words = call("compare", scenario_file(tmp_path), *options, *engine)
    assert status == 0, words
    assert "small, 2 seeds: mean and deviation of held-out accuracy" in words
    summary = json.loads((tmp_path / "runs" / "summary.json").read_text())["scores"]
    assert [len(summary[name]["after"]) for name in ("cdfl", "local")] == [2, 2]


def test_the_paper_runs_on_a_cluster(cluster, tmp_path):
    options = ["--smoke", "--algorithms", "cdfl,local-keep", "--presets", "default", "--out", tmp_path / "results"]
    status, words = call("paper", "table1", *options, "--engine", "ray", "--address", cluster.address)
    assert status == 0, words
    runs = len(list((tmp_path / "results").glob("**/*.json")))
    assert runs > 0
    assert "failed" not in words
    status, words = call("paper", "table1", *options)
    assert status == 0, words
    assert re.search(r"(\d+) runs, \1 of them stored already", words), words
