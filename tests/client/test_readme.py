"""The three terminals of the README, run as they stand there."""

import re
import shlex
import signal
import socket
import subprocess
import time
from statistics import fmean

from .real import CDFL, ROOT, environment

SECONDS = 120  # for everything
LOOKS = 24  # of each client: two drifts, at its 11th and 21st


def terminals() -> list[list[str]]:
    """The commands of each terminal."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    part = page.split("<!-- three terminals: run by")[1].split("<!-- three terminals: end")[0]
    blocks = part.split("```\n")[1::2]
    return [[line for line in block.splitlines() if line and not line.startswith("#")] for block in blocks]


def begin(command: str, folder, port: int, *more: str) -> subprocess.Popen:
    """Run a command of the README, on another port."""
    program, *arguments = shlex.split(command.replace(":8000", f":{port}"))
    assert program == "cdfl"
    return subprocess.Popen(  # noqa: S603
        [CDFL, *arguments, *more],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_three_terminals(tmp_path):
    (init, serve), (first,), (second,) = terminals()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    end = time.monotonic() + SECONDS
    assert begin(init, tmp_path, port).communicate(timeout=SECONDS)[0].startswith("wrote setup_cdfl.py")
    server, clients = begin(serve, tmp_path, port, "--port", str(port)), []
    try:
        assert any("serving on" in line for line in server.stdout)  # reads no further
        clients = [begin(join, tmp_path, port, "--turns", str(LOOKS), "--every", "0") for join in (first, second)]
        said = [client.communicate(timeout=max(1, end - time.monotonic()))[0] for client in clients]
    finally:
        for process in (*clients, server):
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            process.stdout.close()
    for number, client in enumerate(clients, start=1):
        text = said[number - 1]
        assert client.returncode == 0, text
        assert f"car-{number}: joined, epoch" in text
        lines = [line for line in text.splitlines() if ": turn " in line]
        assert len(lines) == LOOKS
        uploads = [int(re.search(r"turn (\d+)", line)[1]) for line in lines if "trained and uploaded" in line]
        assert uploads[0] == 1
        assert {11, 12, 13, 21, 22, 23} & set(uploads), text  # it has noticed
        assert len(uploads) < LOOKS / 2, text  # and is quiet when nothing changes
        losses = [float(found[1]) if (found := re.search(r"loss ([\d.]+)", line)) else 0.0 for line in lines]
        assert max(losses[10], losses[20]) > 1.5 * fmean(losses[14:20])  # the drift was real, and did not last
    assert server.returncode == 0
