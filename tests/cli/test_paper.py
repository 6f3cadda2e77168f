"""`cdfl paper`."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from cdfl.algorithms import ALGORITHMS
from cdfl.paper import __main__ as module
from cdfl.paper.experiment import list_experiments
from cdfl.paper.folder import experiments_folder
from cdfl.sim.presets import PRESETS

from .small import call


def test_a_list_of_what_there_is():
    code, output = call("paper", "list")
    assert code == 0
    for experiment in list_experiments():
        assert experiment.name in output


def test_a_part_of_an_experiment(tmp_path):
    given = ["paper", "overhead", "--smoke", "--rows", "fashion-mnist-2", "--algorithms", "cdfl, fedsoft"]
    code, output = call(*given, "--trials", 1, "--out", tmp_path, "--device", "cpu")
    assert code == 0
    assert "2 cells, 0 of them are there" in output
    assert "overhead.md" in output
    assert "FashionMNIST (2)" in (tmp_path / "overhead.md").read_text()


def test_errors_are_one_line():
    code, output = call("paper", "table2")
    assert (code, output.split(";")[0]) == (2, "cdfl: there is no experiment 'table2'")
    code, output = call("paper", "list", "--rows", "foo")
    assert (code, output) == (2, "cdfl: list shows every experiment with all its rows; leave --rows away")
    code, output = call("paper", "table1", "--rows", "mnist-4", "--smoke")
    assert code == 2
    assert output.startswith("cdfl: there is no scenario 'mnist-4' in this experiment")


def test_help_is_enough_to_get_going():
    code, page = call("paper", "--help")
    assert code == 0
    known = [experiment.name for experiment in list_experiments()]
    for name in (*known, *PRESETS, *ALGORITHMS, "runs/paper,", "runs/paper-smoke", "cdfl paper table1 --smoke"):
        assert name in page


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["table2"], "python -m cdfl.paper: there is no experiment 'table2'; there are reading, table1"),
        (["table1", "--rows", "mnist"], "python -m cdfl.paper: there is no scenario 'mnist' in this experiment"),
        (["table1", "--trials", "0"], "argument --trials: got '0'; expected a whole number, 1 or more"),
        (["table1", "--processes", "two"], "argument --processes: got 'two'; expected a whole number, 1 or more"),
        (
            ["list", "--rows", "foo"],
            "python -m cdfl.paper: list shows every experiment with all its rows; leave --rows away",
        ),
        (["theorem1", "--trials", "1"], "python -m cdfl.paper: theorem1 is one computation on the CPU, without rows"),
        (["readme", "--add", "nowhere"], "python -m cdfl.paper: there are no results in nowhere"),
    ],
)
def test_errors_of_the_module_are_one_line(given, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        module.main(given)
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert words in last


def test_a_broken_file_is_named(tmp_path, capsys):
    (tmp_path / "fashion-mnist-2.json").write_text('{"scenario": ')
    code, output = call("paper", "overhead", "--smoke", "--out", tmp_path)
    assert code == 2
    assert "fashion-mnist-2.json is no JSON" in output
    with pytest.raises(SystemExit):
        module.main(["overhead", "--smoke", "--out", str(tmp_path)])
    assert "fashion-mnist-2.json is no JSON" in capsys.readouterr().err


def test_the_module_needs_torch_numpy_and_safetensors_alone():
    others = ("typer", "rich", "sklearn", "scipy", "PIL", "matplotlib", "httpx", "uvicorn", "starlette")
    block = f"import sys; sys.modules.update(dict.fromkeys({others}))"
    told = (
        "from cdfl.paper.pages import readme; from cdfl.paper import Results; print(readme(Results(Path(sys.argv[1]))))"
    )
    code = f"{block}; from pathlib import Path; from cdfl.paper.__main__ import main; main(['list']); {told}"
    given = [sys.executable, "-c", code, str(experiments_folder() / "results")]
    done = subprocess.run(given, capture_output=True, text=True, check=False)  # noqa: S603
    assert "table1 " in done.stdout, done.stderr
    assert (experiments_folder() / "README.md").read_text(encoding="utf-8") in done.stdout, done.stderr


def test_the_module_does_the_same_without_a_command_line_library(tmp_path, capsys):
    module.main(["list"])
    assert "table1" in capsys.readouterr().out
    module.main(["overhead", "--smoke", "--rows", "fashion-mnist-2", "--out", str(tmp_path), "--device", "cpu"])
    assert "wrote" in capsys.readouterr().out
    assert (tmp_path / "overhead.png").exists()


@pytest.mark.parametrize(
    ("begin", "processes"),
    [(["-c", "from cdfl.cli import app; app()", "paper"], 1), (["-m", "cdfl.paper"], 2)],
    ids=["cdfl paper", "python -m cdfl.paper"],
)
def test_a_signal_ends_it_at_once(tmp_path, begin, processes):
    """A run of a minute, told to stop in its first seconds; no process of it goes on."""
    given = ["adaptation", "--rows", "digits-4-sudden", "--algorithms", "cdfl", "--trials", "2"]
    given += ["--together", "1", "--processes", str(processes), "--out", str(tmp_path), "--device", "cpu"]
    command = [sys.executable, *begin, *given]
    process = subprocess.Popen(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "2 cells, 0 of them are there\n"
    time.sleep(4)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 130, output
    assert re.search(
        r"^[01] of 2 cells are kept, [12] are missing\nthe same command runs what is missing\n", output, re.M
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
