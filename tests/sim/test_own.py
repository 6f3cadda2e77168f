"""A scenario file with everything of one's own, from the command line: run, interrupted, resumed, compared."""

import json

import pytest
from typer.testing import CliRunner

from cdfl.algorithms import ALGORITHMS
from cdfl.cli import app
from cdfl.record import RunFolder
from cdfl.sim.run import configure, run_events

from .test_resume import stop_after

OWN = '''
from dataclasses import replace
import numpy as np
from torch import nn
from cdfl.algorithms import Algorithm, register
from cdfl.data import Sizes
from cdfl.scenarios import load_scenario

@register
class Calm(Algorithm):
    name = "calm"

class Back:
    """All of a client's data from one cluster, from another every few updates."""
    def __init__(self, every):
        self.every = every
    def counts(self, seed, client, update, size, num_clusters):
        return size * np.eye(num_clusters, dtype=int)[(client + update // self.every) % num_clusters]

def net(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1),
                         nn.Linear(8, num_classes))

scenario = replace(
    load_scenario("digits-4"), name="own", model=net, drift=Back(2), num_clients=4, num_uploads=9,
    sizes=Sizes(low=8, high=12, test=10, pretraining=16, proxy=16),
    hyperparams={"batch_size": 8, "local_epochs": 1, "shared_epochs": 1, "separate_epochs": 1},
)
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr("cdfl.algorithms.ALGORITHMS", dict(ALGORITHMS))
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def cdfl(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_it_is_resumed_with_the_same_settings_only(own, tmp_path):
    whole, parts = RunFolder(tmp_path / "whole"), tmp_path / "parts"
    assert cdfl("run", own, "--algorithm", "calm", "--out", whole.path).exit_code == 0
    config = configure(str(own), algorithm="calm")
    assert config.to_json()["scenario"]["drift"] == {"kind": "Back", "every": 2}
    assert config.to_json()["scenario"]["model"].endswith(".net")
    stop_after(run_events(config, RunFolder.create(parts, config.to_json())), 5)
    own.write_text(OWN.replace("Back(2)", "Back(3)"))
    other = cdfl("run", own, "--algorithm", "calm", "--out", parts, "--resume")
    assert (other.exit_code, "holds a run with other settings" in other.output) == (2, True)
    own.write_text(OWN)
    assert cdfl("run", own, "--algorithm", "calm", "--out", parts, "--resume").exit_code == 0
    assert (parts / "events.jsonl").read_bytes() == (whole.path / "events.jsonl").read_bytes()


def test_it_is_compared_with_others(own, tmp_path):
    told = cdfl("compare", own, "--algorithms", "calm,cdfl", "--seeds", "2", "--out", tmp_path / "both")
    assert told.exit_code == 0, told.output
    summary = json.loads((tmp_path / "both" / "summary.json").read_text())
    assert summary["calm"] == summary["cdfl"]  # it changes nothing but the name
