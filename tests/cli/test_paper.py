"""`cdfl paper` and `python -m experiments`."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from cdfl.algorithms import ALGORITHMS
from cdfl.sim.presets import PRESETS
from experiments.registry import EXPERIMENTS

from .small import call

pytestmark = pytest.mark.slow


def test_list_shows_every_experiment():
    code, output = call("paper", "list")
    assert code == 0
    for name in EXPERIMENTS:
        assert name in output


def test_a_part_of_an_experiment(tmp_path):
    given = ["paper", "overhead", "--smoke", "--rows", "fashion-mnist-2", "--algorithms", "cdfl, fedsoft"]
    code, output = call(*given, "--trials", 1, "--out", tmp_path, "--device", "cpu")
    assert code == 0
    assert "2 runs, 0 of them stored already" in output
    assert "overhead.md" in output
    assert "FashionMNIST (2)" in (tmp_path / "overhead.md").read_text()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["table2"], "cdfl: there is no experiment 'table2'; there are preset-search, table1"),
        (["list", "--rows", "foo"], "cdfl: list shows every experiment with all its rows; omit --rows"),
        (["table1", "--rows", "mnist-4", "--smoke"], "cdfl: there is no scenario 'mnist-4' in this experiment"),
        (["theorem1", "--trials", "1"], "cdfl: theorem1 is one computation on the CPU, without rows"),
        (["readme", "--add", "nowhere"], "cdfl: there are no results in nowhere"),
    ],
)
def test_errors_are_one_line(given, words):
    code, output = call("paper", *given)
    assert (code, output.count("\n")) == (2, 0)
    assert output.startswith(words)


@pytest.mark.parametrize("given", [["table1", "--trials", "0"], ["table1", "--processes", "two"], ["--what"]])
def test_what_the_parser_refuses(given):
    code, output = call("paper", *given)
    assert code == 2
    assert "cdfl paper" in output


def test_help_is_that_of_the_experiments():
    code, page = call("paper", "--help")
    assert code == 0
    for name in (*EXPERIMENTS, *PRESETS, *ALGORITHMS, "runs/paper,", "runs/paper-smoke", "cdfl paper table1 --smoke"):
        assert name in page


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "fashion-mnist-2.json").write_text('{"scenario": ')
    code, output = call("paper", "overhead", "--smoke", "--out", tmp_path)
    assert code == 2
    assert "fashion-mnist-2.json is not JSON" in output


def test_without_a_checkout_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys.modules["cdfl.cli.paper"], "__file__", str(tmp_path / "site-packages" / "cdfl" / "cli" / "paper.py")
    )
    monkeypatch.chdir(tmp_path)
    code, output = call("paper", "list")
    assert code == 2
    assert output == "cdfl: `cdfl paper` needs a checkout of the repository; clone it and run the command there"


def test_a_signal_ends_it_at_once(tmp_path):
    """A run of a minute is stopped in its first seconds; no process of it goes on."""
    given = ["adaptation", "--rows", "digits-4-sudden", "--algorithms", "cdfl", "--trials", "2"]
    given += ["--together", "1", "--processes", "2", "--out", str(tmp_path), "--device", "cpu"]
    command = [sys.executable, "-m", "experiments", *given]
    process = subprocess.Popen(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "2 runs, 0 of them stored already\n"
    time.sleep(4)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 130, output
    assert re.search(
        r"^[01] of 2 runs are stored, [12] are missing\nrepeat the command to run what is missing\n", output, re.M
    )
    assert "Traceback" not in output
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError("a process of it was still there")
