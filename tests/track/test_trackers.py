"""Trackers, each with its own package: what was recorded is read back. `make test-trackers` installs the large ones."""

from pathlib import Path

import pytest

from cdfl.track import open_trackers

from ..made_up import events
from ..server.live import wait_for

pytestmark = pytest.mark.slow

CONFIG = {"algorithm": "cdfl", "settings": {"rates": {"base_rate": 0.1}}}


def record(name: str, folder: Path, runs: int = 1) -> None:
    named = [(f"run-{which}", CONFIG, folder / f"run-{which}") for which in range(runs)]
    for _, _, path in named:
        path.mkdir()
    with open_trackers([name], named) as track:
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
        after = read.Scalars("client/after")
        assert [point.step for point in after] == list(range(1, 13))
        assert after[-1].value == pytest.approx(0.82)
        assert read.Scalars("cluster/0")[-1].value == pytest.approx(0.82)
        assert read.Scalars("final/after")[0].step == 12
        assert "config/text_summary" in read.Tags()["tensors"]


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
        history = client.get_metric_history(run.info.run_id, "client/after")
        assert [(point.step, round(point.value, 6)) for point in history][-1] == (12, 0.82)
        assert len(history) == 12


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
        if "client/after" in values:
            steps[int(values["_step"])] = float(values["client/after"])
    return steps
