"""Run, interrupt, resume and compare a user's scenario file: the one of docs/how-to/extend.md."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdfl.algorithms import ALGORITHMS
from cdfl.cli import app
from cdfl.run_folder import RunFolder
from cdfl.sim.runner import configure, run_events

from .test_checkpoint import stop_after

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"
MINE = re.search(r"title=\"mine.py\"\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL).group(1)
QUICK = {"batch_size": 8, "local_epochs": 1, "shared_epochs": 1, "separate_epochs": 1}
SHORT = [
    "--num-uploads",
    9,
    "--num-clients",
    4,
    *(word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")),
]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr("cdfl.algorithms.ALGORITHMS", dict(ALGORITHMS))
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def cdfl(*words):
    return CliRunner().invoke(app, [str(word) for word in (*words, *SHORT)])


def test_it_is_resumed_with_the_same_settings_only(mine, tmp_path):
    whole, parts = RunFolder(tmp_path / "whole"), tmp_path / "parts"
    assert cdfl("run", mine, "--algorithm", "calm", "--out", whole.path).exit_code == 0
    config = configure(str(mine), algorithm="calm", num_uploads=9, num_clients=4, **QUICK)
    assert config.to_json()["scenario"]["drift"] == {"kind": "Moving", "every": 5}
    assert config.to_json()["scenario"]["model"].endswith(".net")
    stop_after(run_events(config, RunFolder.create(parts, config.to_json())), 5)
    mine.write_text(MINE.replace("Moving(5)", "Moving(6)"))
    other = cdfl("run", mine, "--algorithm", "calm", "--out", parts, "--resume")
    assert (other.exit_code, "holds a run with other settings" in other.output) == (2, True)
    mine.write_text(MINE)
    assert cdfl("run", mine, "--algorithm", "calm", "--out", parts, "--resume").exit_code == 0
    assert (parts / "events.jsonl").read_bytes() == (whole.path / "events.jsonl").read_bytes()


def test_it_is_compared_with_others(mine, tmp_path):
    result = cdfl("compare", mine, "--algorithms", "calm,cdfl", "--seeds", "2", "--out", tmp_path / "both")
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "both" / "summary.json").read_text())["scores"]
    assert summary["calm"] == summary["cdfl"]  # it changes nothing but the name
