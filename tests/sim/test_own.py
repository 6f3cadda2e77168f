"""The scenario file of docs/how-to/extend.md from the command line: run, interrupted, resumed, compared."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdfl.algorithms import ALGORITHMS
from cdfl.cli import app
from cdfl.record import RunFolder
from cdfl.sim.runner import configure, run, run_events

from .test_resume import stop_after

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"
OWN = re.search(r"title=\"mine.py\"\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL).group(1)
QUICK = {"batch_size": 8, "local_epochs": 1, "shared_epochs": 1, "separate_epochs": 1}
SHORT = [
    "--num-uploads",
    9,
    "--num-clients",
    4,
    *(word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")),
]


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr("cdfl.algorithms.ALGORITHMS", dict(ALGORITHMS))
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def cdfl(*words):
    return CliRunner().invoke(app, [str(word) for word in (*words, *SHORT)])


def test_it_is_resumed_with_the_same_settings_only(own, tmp_path):
    whole, parts = RunFolder(tmp_path / "whole"), tmp_path / "parts"
    assert cdfl("run", own, "--algorithm", "calm", "--out", whole.path).exit_code == 0
    config = configure(str(own), algorithm="calm", num_uploads=9, num_clients=4, **QUICK)
    assert config.to_json()["scenario"]["drift"] == {"kind": "Moving", "every": 5}
    assert config.to_json()["scenario"]["model"].endswith(".net")
    stop_after(run_events(config, RunFolder.create(parts, config.to_json())), 5)
    own.write_text(OWN.replace("Moving(5)", "Moving(6)"))
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


class Tires:
    """A policy that is one until it has decided five times."""

    def decide(self, memory, turn):
        turns = len(memory) + 1
        return (*memory, 1.0) if turns > 5 else ((*memory, 1.0), False)


def test_a_policy_is_checked_whenever_it_is_asked():
    with pytest.raises(ValueError, match=r"Tires.decide returned \(1.0, 1.0, .*; expected \(memory, bool\)"):
        run("digits-4", policy=Tires(), num_uploads=9, num_clients=4, **QUICK)
