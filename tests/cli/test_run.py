import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib import import_module

import pytest

from cdfl import load
from cdfl.report import progress_display
from cdfl.run_events import Finished, Uploaded, only
from cdfl.run_folder import RunFolder
from cdfl.sim import checkpoint
from cdfl.sim.client_stack import Stack
from cdfl.sim.runner import configure, run_events

from ..sim.test_checkpoint import stop_after
from .small import call, scenario_file

pytestmark = pytest.mark.slow


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where runs/ goes
    return scenario_file(tmp_path)


def test_help():
    code, output = call("--help")
    assert code == 0
    for command in ("run", "compare", "scenarios", "data"):
        assert f" {command} " in output
    code, output = call("run", "--help")
    assert code == 0
    for option in ("--algorithm", "--seed", "--device", "--out", "--preset", "--time-model", "--policy", "--resume"):
        assert option in output
    assert "cdfl, fedsoft, fedem, ifca, fedasync, fedbuff, local," in re.sub(r"[^\w,. -]+ ", "", output)


def test_a_run_with_experts_ends_with_who_serves_what(small, tmp_path):
    code, output = call("run", small, "--set", "reply=experts", "--num-uploads", 4)
    assert code == 0
    end = RunFolder(tmp_path / "runs" / "small-cdfl-0").events()[-1]
    for label, value in [
        ("old model, without experts", end.held),
        ("new model, without experts", end.after),
        ("old model, with experts", end.served_held),
        ("new model, with experts", end.served),
        ("new model, likeliest expert for each input", end.routed["one"]),
    ]:
        assert re.search(rf"clients, {label} {value:.3f}", output), label
    run = load(tmp_path / "runs" / "small-cdfl-0")
    assert f"new model, with experts {end.served:.3f}" in repr(run)
    assert "new model, with experts" in run._repr_html_()


def test_a_run_ends_with_a_table_and_a_folder(small, tmp_path):
    code, output = call("run", small, "--seed", 3)
    assert code == 0
    assert "cdfl on small, seed 3: 12 uploads" in output
    folder = RunFolder(tmp_path / "runs" / "small-cdfl-3")
    assert "results in runs/small-cdfl-3/: config, versions, events, models" in output
    end = folder.events()[-1]
    assert isinstance(end, Finished)
    for label, value in [
        ("clients, own training", f"{end.before:.3f}"),
        ("clients, new model", f"{end.after:.3f}"),
        ("clusters, at the end", f"{end.cluster:.3f}"),
        (r"mixture error \(KL\), 0 is exact", f"{end.divergence:.3f}"),
    ]:
        assert re.search(rf"{label} {value}", output), label
    assert "experts" not in output
    assert folder.config()["seed"] == 3
    assert folder.config()["settings"]["training"]["batch_size"] == 8
    _, output = call("run", small, "--seed", 3)
    assert "results in runs/small-cdfl-3-2/" in output  # the next free name
    assert (tmp_path / "runs" / "small-cdfl-3-2" / "events.jsonl").read_bytes() == (
        folder.path / "events.jsonl"
    ).read_bytes()


def test_options_reach_the_run(small, tmp_path):
    code, output = call(
        "run", small, "--algorithm", "fedbuff", "--num-uploads", 6, "--num-clients", 3, "--time-model", "sessions",
        "--policy", "every-samples", "--precision", "bfloat16", "--set", "base_rate=0.1", "--set", "max_staleness=none",
        "--out", tmp_path / "here", "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert "KL" not in output  # an algorithm without estimates
    config = RunFolder(tmp_path / "here").config()
    assert (config["algorithm"], config["time_model"]["kind"], config["policy"]["kind"]) == (
        "fedbuff",
        "Sessions",
        "EverySamples",
    )
    assert (config["scenario"]["num_uploads"], config["scenario"]["num_clients"]) == (6, 3)
    assert (config["settings"]["rates"]["base_rate"], config["precision"], config["device"]) == (0.1, "bfloat16", "cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--algorithm", "fedavg"], "there is no algorithm 'fedavg'; there are cdfl"),
        (["--set", "speed=3"], "there is no setting 'speed'; there are"),
        (["--set", "seed=3"], "there is no setting 'seed'; there are"),
        (["--set", "base_rate"], "--set got 'base_rate'; expected name=value"),
        (["--set", "base_rate=25"], "base_rate is 25; expected a number from 0 to 1"),
        (["--device", "tpu"], "device is 'tpu'; expected auto, cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "device is 'cuda:99', but this machine has no such GPU"),
        (["--precision", "half"], "precision is 'half'; expected one of"),
        (
            ["--precision", "tf32", "--device", "cpu"],
            "precision is 'tf32' on cpu; it needs a CUDA GPU; use float32",
        ),
        (["--time-model", "never"], "there is no time model 'never', and no trace file; there are uniform"),
        (["--policy", "maybe"], "there is no policy 'maybe'; there are always"),
        (["--preset", "best"], "there is no preset 'best'; there are default, experts, paper"),
        (["--preset", "paper"], "the paper does not run small; use preset 'default'"),
        (["--num-uploads", "0"], "num_uploads is 0; expected a whole number, 1 or more"),
        (["--seed", "-1"], "seed is -1; expected a whole number, 0 or more"),
        (["--resume"], "there is no run in runs/small-cdfl-0 to resume"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line_and_exit_code_2(small, tmp_path, options, message):
    code, output = call("run", small, *options)
    assert code == 2
    assert output.startswith(f"cdfl: {message}")
    assert not (tmp_path / "runs").exists()


def test_an_unknown_scenario_and_a_used_folder_are_refused(small, tmp_path):
    code, output = call("run", "digits-5")
    assert code == 2
    assert output.startswith("cdfl: ")
    assert "digits-5" in output
    assert call("run", small, "--out", tmp_path / "here")[0] == 0
    before = (tmp_path / "here" / "events.jsonl").read_bytes()
    code, output = call("run", small, "--out", tmp_path / "here", "--seed", 1)
    assert code == 2
    assert "already holds a run; name another folder with --out, or delete it" in output
    assert (tmp_path / "here" / "events.jsonl").read_bytes() == before


def test_missing_data_leave_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        code, output = call("run", "fashion-mnist-4", "--data-dir", tmp_path / "data")
        assert code == 2
        assert "fashion-mnist is not in" in output
        assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_text("")
    assert call("run", "fashion-mnist-4", "--data-dir", tmp_path / "data", "--out", mine)[0] == 2
    assert list(mine.iterdir()) == [mine / "notes"]


def test_stopped_before_the_first_upload(small, tmp_path, monkeypatch):
    def interrupted(self, trainings):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["cdfl", "run", "small.toml", "--resume"])
    with monkeypatch.context() as patched:
        patched.setattr(Stack, "train", interrupted)
        code, output = call("run", small)
    assert (code, output) == (
        130,
        "cdfl: stopped; nothing is stored yet; start again with: cdfl run small.toml --resume --out runs/small-cdfl-0",
    )
    code, output = call("run", small, "--out", "runs/small-cdfl-0", "--resume")
    assert (code, "seed 0: 12 uploads" in output) == (0, True)


def test_progress_lines_without_a_terminal(small, monkeypatch):
    monkeypatch.setattr(progress_display, "SECONDS_BETWEEN_LINES", 0.0)
    code, output = call("run", small)
    assert code == 0
    assert re.search(r"reading data, \d+ s so far", output)
    assert re.search(r"pre-training, \d+%, about \d+ s left, \d+ s so far", output)
    assert re.search(r"\b\d+ of 12 uploads.*?, \d+ s so far", output)


def test_a_signal_and_resume(tmp_path):
    """A real signal to a real process; the resumed run gives the same bytes as an uninterrupted one."""
    small = scenario_file(tmp_path, uploads=150)
    parts, whole = RunFolder(tmp_path / "parts"), RunFolder(tmp_path / "whole")
    command = [sys.executable, "-c", "from cdfl.cli import app; app()", "run", str(small), "--out", str(parts.path)]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # as in this process: sums in the same order
    process = subprocess.Popen(  # noqa: S603
        command, env={**os.environ, **one_thread}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (parts.path / "events.jsonl").exists() and len(only(parts.events(), Uploaded)) > 5:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    done = len(only(parts.events(), Uploaded))
    assert 5 < done < 150
    kept = len(only(parts.events()[: checkpoint.num_events(parts.path)], Uploaded))
    assert f"cdfl: stopped; {kept} of 150 uploads are stored; continue with:\n" in output
    assert f"cdfl run {small} --out {parts.path} --resume\n" in output

    code, output = call("run", small, "--out", parts.path, "--seed", 1, "--resume")
    assert (code, "holds a run with other settings; use the same settings to resume it" in output) == (2, True)
    assert len(only(parts.events(), Uploaded)) == done  # nothing was touched
    code, output = call("run", small, "--out", parts.path, "--resume")
    assert code == 0
    assert "seed 0: 150 uploads" in output
    assert call("run", small, "--out", whole.path)[0] == 0
    assert (parts.path / "events.jsonl").read_bytes() == (whole.path / "events.jsonl").read_bytes()
    assert json.loads((parts.path / "config.json").read_text()) == whole.config()


@contextmanager
def no_room(file_bytes):
    """Files may not grow beyond that: writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("file_bytes", [4500, 20_000], ids=["events", "checkpoint"])
def test_a_full_disk_and_resume(small, tmp_path, monkeypatch, file_bytes):
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    monkeypatch.setattr(sys, "argv", ["cdfl", "run", "small.toml"])
    if file_bytes > 4500:
        monkeypatch.setattr(import_module("cdfl.sim.runner"), "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    with no_room(file_bytes):
        code, output = call("run", small, "--out", parts)
    assert code == 2
    assert f"cdfl: {parts}: " in output  # after a warning: so short a training tells no clusters apart
    assert "File too large" in output
    assert output.endswith(f"; nothing is stored yet; start again with: cdfl run small.toml --out {parts} --resume")
    assert sorted(path.name for path in parts.iterdir()) == ["config.json", "events.jsonl", "versions.json"]
    assert call("run", small, "--out", parts, "--resume")[0] == 0
    assert call("run", small, "--out", whole)[0] == 0
    assert (parts / "events.jsonl").read_bytes() == (whole / "events.jsonl").read_bytes()


def test_a_damaged_file_is_named(small, tmp_path):
    config, out = configure(str(small)), tmp_path / "parts"
    stop_after(run_events(config, RunFolder.create(out, config.to_json())), 8)
    file = out / "checkpoint.safetensors"
    kept = file.read_bytes()
    for damaged in (kept[: len(kept) // 2], kept[:5], b"", b"\x02" + bytes(7) + b"{}"):
        file.write_bytes(damaged)
        code, output = call("run", small, "--out", out, "--resume")
        assert (code, output.startswith(f"cdfl: {file} is damaged (")) == (2, True)
        assert output.endswith("); restore it, or delete it to start a new run")
    file.unlink()
    assert call("run", small, "--out", out, "--resume")[0] == 0
    (out / "events.jsonl").write_text("oops\n")
    code, output = call("plot", out)
    assert (code, output.startswith(f"cdfl: {out / 'events.jsonl'}, line 1: this line is not an event")) == (2, True)
    (out / "config.json").write_text("{")
    code, output = call("run", small, "--out", out, "--resume")
    assert (code, output.startswith(f"cdfl: {out / 'config.json'} cannot be read (Expecting")) == (2, True)
    assert output.endswith("; restore it, or name another folder")


def test_a_run_without_uploads(small, tmp_path):
    code, output = call("run", small, "--policy", "adwin", "--num-uploads", 2)
    assert code == 0
    assert re.search(r"clients, new model - ", output)
    assert "0 of 2 uploads were made: the policy never uploaded in 1" in output
    code, output = call("compare", small, "--algorithms", "cdfl", "--seeds", 1, "--policy", "adwin", "--num-uploads", 2)
    assert code == 0
    assert "cdfl, seed 0: 0 of 2 uploads were made: the policy never uploaded in 1" in output


@pytest.mark.parametrize("command", [("run",), ("compare", "--algorithms", "cdfl,local")])
def test_notes_on_the_data_are_printed_once(small, tmp_path, command):
    text = small.read_text()
    small.write_text(re.sub(r"pretraining = \d+", "pretraining = 3000", text))
    name, *options = command
    code, output = call(name, small, *options)
    assert code == 0
    assert output.count("digits: pretraining set of 324 samples instead of 3,000") == 1
    assert "instead of 3,000" in next((tmp_path / "runs").rglob("events.jsonl")).read_text().splitlines()[0]


def test_a_name_in_brackets(small):
    renamed = small.rename(small.with_name("[x].toml"))
    renamed.write_text(renamed.read_text().replace('name = "small"', 'name = "[x]"'))
    code, output = call("run", renamed)
    assert (code, "cdfl on [x], seed 0" in output, "results in runs/[x]-cdfl-0/" in output) == (0, True, True)
    _, output = call("compare", renamed, "--algorithms", "local")
    assert "[x], 3 seeds" in output


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "mine.py"


SCENARIO = "from dataclasses import replace\nfrom cdfl.scenarios import load_scenario\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "problem = 1/0",
            "line 3: reading it failed with ZeroDivisionError: division by zero; expected a Python file",
        ),
        ("import no_such", "line 3: there is no module no_such; install it, or put no_such.py beside the file"),
        ("problem = (", "line 3: invalid Python: '(' was never closed"),
        (
            "problem = replace(load_scenario('digits-4'), model='net')",
            "line 3: there is no model 'net'; there are cnn",
        ),
    ],
)
def test_an_error_in_a_scenario_file_is_one_line(scenario, text, words):
    scenario.write_text(SCENARIO + text)
    code, said = call("run", scenario)
    assert (code, "pip install" in said) == (2, False)
    assert said.startswith(f"cdfl: {scenario}, {words}")


def test_a_module_that_a_file_imports_later_is_not_blamed_on_an_extra(scenario):
    later = "def net(input_shape, num_classes):\n    import no_such\n"
    scenario.write_text(SCENARIO + later + "problem = replace(load_scenario('digits-4'), model=net)")
    code, said = call("run", scenario, "--out", scenario.parent / "run")
    assert (code, "pip install" in said) == (2, False)
    assert said.startswith(
        f"cdfl: {scenario}, line 4: there is no module no_such; install it, or put no_such.py beside"
    )


def test_a_scenario_file_may_import_modules_beside_it(scenario):
    (scenario.parent / "my_scenario_parts.py").write_text("uploads = 3")
    text = "import my_scenario_parts as mine\nproblem = replace(load_scenario('digits-4'), num_uploads=mine.uploads)\n"
    scenario.write_text(SCENARIO + text)
    settings = ("--set", "local_epochs=1", "--set", "shared_epochs=1", "--set", "separate_epochs=1")
    code, said = call("run", scenario, "--num-clients", 3, "--out", scenario.parent / "run", *settings)
    assert (code, "seed 0: 3 uploads" in said) == (0, True)


def test_scores_name_their_metric(small):
    code, output = call("run", small, "--num-uploads", 2, "--json", squeeze=False)
    assert (code, json.loads(output)["metrics"]) == (0, [{"name": "accuracy", "higher_is_better": True}])
