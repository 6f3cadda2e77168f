"""The flags for trackers."""

import sys

import pytest

from ..made_up import events, write_run
from .small import call, scenario_file


def test_track_needs_a_tracker(tmp_path):
    run = write_run(tmp_path / "run", events())
    assert call("track", run) == (2, "cdfl: expected at least one of --tensorboard, --mlflow and --wandb")


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_names_its_install_line(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    run = write_run(tmp_path / "run", events())
    assert call("track", run, f"--{name}") == (2, f"cdfl: --{name} needs: pip install 'cdfl[{name}]'")


def test_recorded_runs(tmp_path):
    pytest.importorskip("tensorboard")
    run = write_run(tmp_path / "run", events())
    code, said = call("track", run, "--tensorboard")
    assert (code, said) == (0, "recorded 1 run with tensorboard")
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_runs_are_recorded_as_they_go(tmp_path):
    pytest.importorskip("tensorboard")
    code, _ = call("run", scenario_file(tmp_path), "--out", tmp_path / "run", "--tensorboard")
    assert code == 0
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))
