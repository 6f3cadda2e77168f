"""The three terminals of the README, typed one after the other without waiting."""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..server.live import wait_for
from .small import call

pytestmark = pytest.mark.slow

QUICK = ["--set", "shared_epochs=1", "--set", "separate_epochs=1", "--set", "reply=model"]
README = Path(__file__).parents[2] / "README.md"
BIN = Path(sys.executable).parent


def typed() -> list[str]:
    """The commands of the README's three terminals."""
    block = re.search(
        r"^## Three terminals$.*?^```bash\n(cdfl serve.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL
    )
    return block[1].splitlines()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.mark.parametrize("pause", [0.0, pytest.param(0.7, marks=pytest.mark.long)])
def test_they_work_whatever_the_order(tmp_path, monkeypatch, pause):
    """Clients may even be started first: then they wait for the server, and say so once."""
    monkeypatch.chdir(tmp_path)
    assert call("init")[0] == 0
    port, logs, running = free_port(), {}, []
    commands = typed()
    assert [command.split()[1] for command in commands] == ["serve", "join", "join"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    environment |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    try:
        for number, command in reversed(list(enumerate(commands))) if pause else enumerate(commands):
            words = shlex.split(command.replace(":8000", f":{port}"))
            words += ["--port", str(port), *QUICK] if number == 0 else ["--every", "0.1"]
            logs[number] = tmp_path / f"terminal-{number}.log"
            with logs[number].open("w") as log:
                running.append(subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment))  # noqa: S603
            time.sleep(pause)
        wait_for(lambda: all("applied, epoch" in logs[number].read_text() for number in (1, 2)), seconds=120)
    finally:
        for process in running:
            process.terminate()
            process.wait(30)
    for number in (1, 2):
        said = logs[number].read_text()
        assert said.count("waiting for it") <= 2  # it does not answer; it pre-trains
        assert "Traceback" not in said
    assert "serving on" in logs[0].read_text()
