"""Trackers, each with its own package: what was recorded is read back. `make test-trackers` installs the large ones."""

from pathlib import Path
from typing import ClassVar

import pytest

from cdfl.track import TRACKERS, open_trackers

from ..made_up import events
from ..server.live import wait_for

pytestmark = pytest.mark.slow

CONFIG = {"algorithm": "cdfl", "settings": {"rates": {"base_rate": 0.1}}}


class Recorded(list):
    """A tracker that keeps what it is given, and fails at some steps."""

    where = "nowhere"
    failing: ClassVar = set()

    def __init__(self, *_):
        self.closed = None
        opened.append(self)

    def log(self, step, values):
        if step in self.failing:
            raise ConnectionError("the tracking server is away\nand more lines")
        self.append(step)

    def close(self, *, is_complete=True):
        self.closed = is_complete


opened: list[Recorded] = []


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(Recorded, "failing", set())
    monkeypatch.setitem(TRACKERS, "mlflow", Recorded)
    opened.clear()
    return opened


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(tmp_path, recorded):
    Recorded.failing = {4}
    said = []
    with open_trackers(["mlflow"], [("run", CONFIG, tmp_path)], said.append) as track:
        for event in events():
            track(0, event)
    assert max(recorded[0]) == 3
    assert said == ["mlflow stopped recording: ConnectionError: the tracking server is away"]


def test_a_run_that_is_stopped_is_not_called_complete(tmp_path, recorded):
    with open_trackers(["mlflow"], [("run", CONFIG, tmp_path)], pytest.fail):
        pass
    with pytest.raises(KeyboardInterrupt), open_trackers(["mlflow"], [("run", CONFIG, tmp_path)], pytest.fail):
        raise KeyboardInterrupt
    assert [tracker.closed for tracker in recorded] == [True, False]


def test_trackers_that_were_opened_are_closed_if_another_cannot_be(tmp_path, recorded, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no API key")

    monkeypatch.setitem(TRACKERS, "wandb", refuse)
    with (
        pytest.raises(ValueError, match=r"^wandb cannot record: RuntimeError: no API key$"),
        open_trackers(["mlflow", "wandb"], [("run", CONFIG, tmp_path)], pytest.fail),
    ):
        pass
    assert recorded[0].closed is False


def record(name: str, folder: Path, runs: int = 1) -> None:
    named = [(f"run-{which}", CONFIG, folder / f"run-{which}") for which in range(runs)]
    for _, _, path in named:
        path.mkdir(exist_ok=True)
    with open_trackers([name], named, pytest.fail) as track:
        for event in events():  # several runs at a time, as `cdfl compare` has them
            for which in range(runs):
                track(which, event)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    record("tensorboard", tmp_path, runs=2)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for which in range(2):
        read = EventAccumulator(str(tmp_path / f"run-{which}" / "tensorboard"))
        read.Reload()
        after = read.Scalars("accuracy_upload/after")
        assert [point.step for point in after] == list(range(1, 13))
        assert after[-1].value == pytest.approx(0.82)
        assert read.Scalars("accuracy_clusters/0_upright")[-1].value == pytest.approx(0.82)
        assert read.Scalars("final/accuracy_after")[0].step == 12
        assert "config/text_summary" in read.Tags()["tensors"]


def test_a_run_that_tensorboard_records_again_is_there_once(tmp_path):
    pytest.importorskip("tensorboard")
    for _ in range(2):
        record("tensorboard", tmp_path)
        assert len(list((tmp_path / "run-0" / "tensorboard").iterdir())) == 1


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="`make test-trackers` installs MLflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    record("mlflow", tmp_path, runs=2)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("cdfl")
    found = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.run_name for run in found) == ["run-0", "run-1"]
    for run in found:
        assert run.info.status == "FINISHED"
        assert run.data.params["settings.rates.base_rate"] == "0.1"
        assert run.data.params["algorithm"] == run.data.tags["algorithm"] == "cdfl"
        history = client.get_metric_history(run.info.run_id, "accuracy_upload/after")
        assert [(point.step, round(point.value, 6)) for point in history][-1] == (12, 0.82)
        assert len(history) == 12


@pytest.mark.filterwarnings("ignore")
def test_mlflow_shows_which_runs_were_stopped(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="`make test-trackers` installs MLflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(KeyboardInterrupt), open_trackers(["mlflow"], [("run", CONFIG, tmp_path)], pytest.fail):
        raise KeyboardInterrupt
    (found,) = mlflow.MlflowClient().search_runs(["1"])
    assert found.info.status == "KILLED"


def log_records(data, block=2**15, head=7):
    """The records of a file in LevelDB's log format, after the seven bytes that W&B puts in front."""
    place, parts = 7, b""
    while place + head <= len(data):
        if block - place % block < head:  # the rest of a block is padding
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + head : place + head + length]
        place += head + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.filterwarnings("ignore")
def test_wandb_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="`make test-trackers` installs Weights & Biases")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    record("wandb", tmp_path, runs=2)
    for which in range(2):
        (file,) = (tmp_path / f"run-{which}").rglob("*.wandb")
        wait_for(lambda file=file: len(steps_in(file)) == 12, seconds=30)  # its own process writes the file
        assert steps_in(file)[12] == pytest.approx(0.82)


def steps_in(file):
    """What was logged as client/after, by step."""
    from wandb.proto import wandb_internal_pb2

    steps = {}
    for data in log_records(file.read_bytes()):
        entry = wandb_internal_pb2.Record()
        entry.ParseFromString(data)
        values = {item.key or "/".join(item.nested_key): item.value_json for item in entry.history.item}
        if "accuracy_upload/after" in values:
            steps[int(values["_step"])] = float(values["accuracy_upload/after"])
    return steps
