from importlib import import_module

import pytest

from cdfl.record import Clusters, RunFolder

from .small import call


def make_runs(folder, *names):
    """Run folders that hold one event each: the epoch is their number."""
    for epoch, name in enumerate(names):
        with RunFolder.create(folder / name, {}).writer() as write:
            write(Clusters(epoch, [0.5]))


@pytest.fixture
def plotted(monkeypatch):
    """The calls of `plot_run`: the epoch of the run, the file, and the epochs of its rivals by name."""
    calls = []

    def plot_run(events, path, rivals):
        calls.append((events[0].epoch, path, {name: theirs[0].epoch for name, theirs in rivals.items()}))

    monkeypatch.setattr(import_module("cdfl.cli.plot"), "plot_run", plot_run)
    return calls


def test_one_run(tmp_path, plotted):
    make_runs(tmp_path, "a")
    assert call("plot", tmp_path / "a", "--out", tmp_path / "a.svg") == (0, f"wrote {tmp_path / 'a.svg'}")
    assert plotted == [(0, tmp_path / "a.svg", {})]


def test_runs_of_a_comparison_and_others(tmp_path, plotted):
    make_runs(tmp_path / "all", "cdfl-0", "cdfl-1")
    make_runs(tmp_path / "other", "cdfl-1", "local-0")
    code, _ = call("plot", tmp_path / "all", "--against", tmp_path / "other", "--against", tmp_path / "other/local-0")
    assert code == 0
    rivals = {str(tmp_path / "all" / "cdfl-1"): 1, str(tmp_path / "other" / "cdfl-1"): 0}
    rivals[str(tmp_path / "other" / "local-0")] = 1
    assert plotted[0][0] == 0
    assert plotted[0][2] == rivals


def test_a_folder_without_a_run_is_refused(tmp_path):
    code, output = call("plot", tmp_path)
    assert (code, output.startswith(f"cdfl: {tmp_path} holds no run; expected a folder with events.jsonl")) == (2, True)
