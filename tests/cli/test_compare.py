import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from cdfl.cli.compare import _values
from cdfl.run_events import Finished, Uploaded, only
from cdfl.run_folder import RunFolder
from cdfl.sim.client_stack import Stack
from cdfl.sim.runner import configure

from .small import call, scenario_file

pytestmark = pytest.mark.slow


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return scenario_file(tmp_path)


def test_a_table_a_summary_and_a_folder_for_each_run(small, tmp_path):
    code, output = call("compare", small, "--algorithms", "local-keep, cdfl,cdfl", "--seeds", 2)
    assert code == 0
    assert "small, 2 seeds: mean and deviation of held-out accuracy" in output
    assert "results in runs/small-compare/: summary.json and a folder for each run" in output
    parent = tmp_path / "runs" / "small-compare"
    assert sorted(path.name for path in parent.iterdir()) == [
        "cdfl-0", "cdfl-1", "config.json", "local-keep-0", "local-keep-1", "summary.json", "versions.json",
    ]  # fmt: skip
    summary = json.loads((parent / "summary.json").read_text())
    assert summary["metrics"] == [{"name": "accuracy", "higher_is_better": True}]
    summary = summary["scores"]
    assert list(summary) == ["local-keep", "cdfl"]
    for name in ("local-keep", "cdfl"):
        ends = [RunFolder(parent / f"{name}-{seed}").events()[-1] for seed in range(2)]
        after = [end.after for end in ends]
        assert summary[name]["after"] == after  # in the order of the seeds
        assert summary[name]["before"] == [end.before for end in ends]
        scores, costs = re.findall(rf" {name} ([\d ±.]+)", output)
        assert f"{fmean(after):.3f} ± {stdev(after):.3f}" in scores
        megabytes = fmean(end.bytes_down / 1e6 for end in ends)
        assert f" {megabytes:.1f} " in costs
    assert summary["local-keep"]["divergence"] == []
    configs = [RunFolder(parent / f"cdfl-{seed}").config() for seed in range(2)]
    assert [config["seed"] for config in configs] == [0, 1]


PROBLEM = """
import cdfl, torch
torch.manual_seed(0)
inputs = torch.randn(80, 2)
problem = cdfl.Problem(
    model=torch.nn.Linear(2, 1), loss=torch.nn.functional.mse_loss, metrics=["mae", "r2"],
    clusters={"up": (inputs, inputs[:, :1]), "down": (inputs, -inputs[:, :1])},
)
"""


def test_every_metric_has_a_table_and_its_direction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lines.py").write_text(PROBLEM)
    options = ["--algorithms", "cdfl,local", "--seeds", 2, "--num-uploads", 4]
    code, said = call("compare", "lines.py", *options)
    assert code == 0
    assert "lines, 2 seeds: mean and deviation of held-out mae (lower is better)" in said
    assert "held-out r2 algorithm old model own training new model with experts clusters" in said
    found = json.loads(Path("runs", "lines-compare", "summary.json").read_text())
    assert [metric["name"] for metric in found["metrics"]] == ["mae", "r2"]
    ends = [RunFolder(Path("runs", "lines-compare", f"local-{seed}")).events()[-1] for seed in range(2)]
    assert found["more"]["r2"]["local"]["cluster"] == [end.more["r2"]["cluster"] for end in ends]


def test_numbers_are_in_the_order_of_the_seeds(small):
    configs = [configure(str(small), algorithm="local-keep", seed=seed) for seed in range(3)]
    end = Finished(1, 0.4, 0.5, 0.0, 0.0, 0.4, 0.7, None, 0.0, 0.0, 0, {}, 0, 0, 0, 0, 0)
    results = {which: replace(end, after=float(which)) for which in (2, 0, 1)}
    assert _values("local-keep", "after", configs, results) == [0.0, 1.0, 2.0]
    assert _values("local-keep", "divergence", configs, results) == []
    assert _values("cdfl", "after", configs, results) == []


def test_one_seed_has_no_deviation(small):
    code, output = call("compare", small, "--algorithms", "oracle", "--seeds", 1, "--num-uploads", 4)
    assert code == 0
    assert "±" not in output


def test_all_algorithms_run_together(small, tmp_path):
    code, output = call("compare", small, "--algorithms", "all", "--seeds", 1, "--out", tmp_path / "all")
    assert code == 0
    for name in ("cdfl", "fedsoft", "fedasync", "fedbuff", "ifca", "local-keep", "local", "oracle"):
        assert f" {name} " in output
        assert RunFolder(tmp_path / "all" / f"{name}-0").events()[-1].uploads == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--algorithms", "cdfl,avg"], "there is no algorithm 'avg'"),
        (["--algorithms", ""], "there is no algorithm ''"),
        (["--set", "speed=3"], "there is no setting 'speed'"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--policy", "maybe"], "there is no policy 'maybe'"),
        (["--time-model", "never"], "there is no time model 'never'"),
        (["--resume"], "there is no run in runs/small-compare to resume"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(small, tmp_path, options, message):
    code, output = call("compare", small, *options)
    assert code == 2
    assert output.startswith(f"cdfl: {message}")
    assert not (tmp_path / "runs").exists()


def test_a_folder_with_runs_is_refused(small, tmp_path):
    given = ["compare", small, "--algorithms", "local-keep", "--seeds", 1, "--out", tmp_path / "here"]
    assert call(*given)[0] == 0
    before = (tmp_path / "here" / "local-keep-0" / "events.jsonl").read_bytes()
    code, output = call(*given, "--set", "batch_size=4")
    assert code == 2
    assert "already holds a run" in output
    assert (tmp_path / "here" / "local-keep-0" / "events.jsonl").read_bytes() == before


def test_missing_data_leave_no_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = call("compare", "fashion-mnist-4", "--algorithms", "cdfl,local", "--data-dir", tmp_path / "data")
    assert code == 2
    assert "fashion-mnist is not in" in output
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


def test_ctrl_c_and_resume(small, tmp_path, monkeypatch):
    given = ["compare", small, "--algorithms", "cdfl,fedbuff,local", "--seeds", 2]
    assert call(*given, "--out", tmp_path / "whole")[0] == 0
    train, calls = Stack.train, []

    def interrupted(self, trainings):
        calls.append(len(trainings))
        if len(calls) == 6:
            raise KeyboardInterrupt
        return train(self, trainings)

    monkeypatch.setattr(Stack, "train", interrupted)
    monkeypatch.setattr(sys, "argv", ["cdfl", "compare", "a name", "--seeds=2"])
    code, output = call(*given, "--out", tmp_path / "parts")
    kept, of_all = re.search(
        r"cdfl: stopped; (\d+) of (\d+) uploads are stored; continue with: "
        rf"cdfl compare 'a name' --seeds=2 --out {tmp_path}/parts --resume",
        output,
    ).groups()
    told = [
        len(only(RunFolder(path.parent).events(), Uploaded)) for path in (tmp_path / "parts").glob("*/events.jsonl")
    ]
    assert of_all == "72"
    assert 0 < int(kept) <= sum(told)
    code, output = call(*given, "--out", tmp_path / "parts", "--resume", "--set", "batch_size=4")
    assert code == 2
    assert "holds a run with other settings" in output
    code, output = call(*given, "--out", tmp_path / "parts", "--resume")
    assert code == 0
    for path in sorted((tmp_path / "whole").rglob("*.json*")):
        assert (tmp_path / "parts" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes(), path
    assert not list((tmp_path / "parts").rglob("checkpoint*"))
