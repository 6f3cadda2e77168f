"""`cdfl plot` and `cdfl report` on run folders, and folders that hold none."""

import json
import sys

import pytest

from ..made_up import RMSE, events, scored_twice, write_run
from .small import call


@pytest.fixture
def compared(tmp_path):
    for algorithm in ("cdfl", "local"):
        for seed in (0, 1):
            made = events(start={"algorithm": algorithm, "seed": seed})
            write_run(tmp_path / "compared" / f"{algorithm}-{seed}", made)
    return tmp_path / "compared"


def test_plot(compared, tmp_path):
    out = tmp_path / "run.png"
    assert call("plot", compared, "--out", out) == (0, f"wrote {out}")
    comparison = out.read_bytes()
    assert call("plot", compared, "--out", out, "--client", 1)[0] == 0
    assert out.read_bytes() != comparison  # the story of one client
    assert call("plot", compared / "cdfl-0", compared / "cdfl-1", "--out", tmp_path / "two.svg")[0] == 0
    assert "<svg" in (tmp_path / "two.svg").read_text()


def test_report(compared, tmp_path):
    code, said = call("report", compared, "--out", tmp_path / "out", "--json", squeeze=False)
    assert code == 0
    files = json.loads(said)["files"]
    assert files[0] == str(tmp_path / "out" / "report.html")
    assert len(files) == 2 + 2 * 6


@pytest.mark.parametrize("command", ["plot", "report", "watch", "track", "export"])
def test_folders_that_hold_no_run(command, tmp_path):
    options = ["--tensorboard"] if command == "track" else []
    assert call(command, tmp_path / "none", *options) == (
        2,
        f"cdfl: there is no folder {tmp_path}/none; expected one that `cdfl run` or `cdfl compare` made",
    )
    (tmp_path / "empty").mkdir()
    code, said = call(command, tmp_path / "empty", *options)
    assert code == 2
    assert said.startswith(f"cdfl: {tmp_path}/empty holds no run; expected a folder with events.jsonl")


def test_a_run_that_was_killed(tmp_path):
    run = write_run(tmp_path / "run", events())
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "uploa')
    code, said = call("plot", run, "--out", tmp_path / "run.png")
    assert (code, said) == (
        0,
        f"cdfl: run ends in the middle of an event, which is left out; was the run killed? wrote {tmp_path}/run.png",
    )


def test_a_line_that_is_no_event(tmp_path):
    run = write_run(tmp_path / "run", events())
    text = (run / "events.jsonl").read_text().splitlines()
    (run / "events.jsonl").write_text("\n".join([*text[:3], "oops", *text[3:]]) + "\n")
    code, said = call("plot", run)
    assert (code, "line 4: this line is not an event of this version of cdfl: 'oops'" in said) == (2, True)


def test_runs_with_different_metrics(tmp_path):
    one, other = write_run(tmp_path / "one", events()), write_run(tmp_path / "other", events(start={"metrics": [RMSE]}))
    code, said = call("plot", one, other)
    assert (code, said) == (
        2,
        "cdfl: other is scored by rmse (lower is better), one by accuracy; expected runs with the same metric",
    )


def test_another_metric_than_the_main_one(tmp_path):
    run = write_run(tmp_path / "run", scored_twice())
    assert call("plot", run, "--metric", "rmse", "--out", tmp_path / "rmse.png")[0] == 0
    assert call("plot", run, "--out", tmp_path / "accuracy.png")[0] == 0
    assert (tmp_path / "rmse.png").read_bytes() != (tmp_path / "accuracy.png").read_bytes()
    code, said = call("plot", run, "--metric", "rsme")
    assert (code, said) == (
        2,
        "cdfl: run has no metric 'rsme'; there are accuracy, rmse; did you mean rmse?",
    )


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", events())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert call("plot", run) == (2, "cdfl: pictures need matplotlib: pip install 'cdfl[sim]'")


def test_a_run_without_uploads(tmp_path):
    run = write_run(tmp_path / "young", events()[:2])
    assert call("plot", run) == (2, "cdfl: young has no uploads yet; let the run make some first")


def test_clients_that_are_not_there(tmp_path):
    run = write_run(tmp_path / "run", events())
    code, said = call("plot", run, "--client", 7)
    assert (code, "client 7 made no upload in run; there are clients 0 to 2" in said) == (2, True)
