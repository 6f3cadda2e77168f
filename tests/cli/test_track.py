"""The flags for trackers."""

import sys
import threading

import pytest

from cdfl import wire
from cdfl.cli import tracking
from cdfl.track import TRACKERS

from ..made_up import events, write_run
from ..server.live import Live, near
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
    assert (code, said) == (
        0,
        f"recorded 1 run with tensorboard look: tensorboard --logdir {tmp_path}",
    )
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_runs_are_recorded_as_they_go(tmp_path):
    pytest.importorskip("tensorboard")
    code, said = call("run", scenario_file(tmp_path), "--out", tmp_path / "run", "--tensorboard")
    assert code == 0
    assert said.endswith(f"look: tensorboard --logdir {tmp_path}")
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))


class Slow:
    """A tracker that waits until it is let go."""

    where = "nowhere"

    def __init__(self, *_):
        self.let_go = threading.Event()
        self.steps = []
        made.append(self)

    def log(self, step, values):
        self.let_go.wait(10)
        self.steps.append((step, values))

    def close(self, *, is_complete=True):
        pass


made = []


@pytest.mark.slow
def test_a_server_records_uploads_and_what_clients_report(tmp_path, monkeypatch, capsys):
    """The tracker waits for a network; uploads do not wait for the tracker."""
    monkeypatch.setitem(TRACKERS, "mlflow", Slow)
    monkeypatch.setattr(tracking, "MOST_WAITING", 2)
    with (
        Live(tmp_path / "store") as server,
        tracking.tracked_server(["mlflow"], "server", {}, tmp_path, server.engine.cluster_names) as listeners,
    ):
        server.engine.listeners += listeners
        server.model()
        for epoch in range(6):
            server.update(near(server, 1), base_epoch=epoch, key=f"k{epoch}", headers={wire.REPORT: "0.9,0.4"})
        made[-1].let_go.set()
    step, values = made[-1].steps[0]
    assert step == 1
    assert values["reported_loss/held"] == 0.9
    assert values["upload/applied"] == 1
    assert {name.partition("/")[0] for name in values} == {"reported_loss", "upload", "cluster_loss"}
    assert len(made[-1].steps) == 3  # one that it waited for, and two behind it
    assert "trackers are 2 uploads behind; they miss uploads from now on" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_cannot_record_is_one_sentence(tmp_path, monkeypatch, name):
    def refuse(*_):
        raise RuntimeError("no API key\nmore lines")

    monkeypatch.setitem(TRACKERS, name, refuse)
    run = write_run(tmp_path / "run", events())
    assert call("track", run, f"--{name}") == (2, f"cdfl: {name} cannot record: RuntimeError: no API key")
