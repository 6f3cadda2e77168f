"""The curl engine of docs/protocol.md, command by command, against a live server."""

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from cdfl import wire
from cdfl.server.setup import load_setup

from .live import Live

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def commands() -> list[tuple[str, str]]:
    """What is typed, and what is said to it."""
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(([line[2:]], []))
            elif line.startswith("> "):
                found[-1][0].append(line[2:])
            else:
                found[-1][1].append(line)
    return [("\n".join(typed), "\n".join(said)) for typed, said in found]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_session(tmp_path):
    setup = load_setup("cdfl.cli.example_setup").with_settings(shared_epochs=1, separate_epochs=1)
    with Live(tmp_path / "store", setup) as server:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"SERVER": server.url, "PATH": path, "LC_ALL": "C"}
        for typed, expected in commands():
            done = subprocess.run(  # noqa: S603
                ["bash", "-c", typed],  # noqa: S607
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=30,
            )
            said = done.stdout.replace("\r", "").rstrip("\n")
            pattern = expected.rstrip("\n").replace("[", "[[]").replace("...", "*")
            assert fnmatchcase(said, pattern), f"{typed}\nsaid\n{said}\n{done.stderr}\nexpected\n{expected}"
        assert server.engine.state.epoch == 1


def test_the_page_names_what_there_is():
    """Headers, statuses and routes: none is missing."""
    text = PAGE.read_text()
    for name in (
        wire.CLIENT,
        wire.BASE_EPOCH,
        wire.KEY,
        wire.EPOCH,
        wire.MIXTURE,
        wire.RATES,
        wire.STALENESS,
        wire.OUTCOME,
    ):
        assert f"`{name}" in text
    for kind in wire.WireError.__subclasses__():
        assert re.search(rf"^\| [0-9, ]*{kind.status}", text, re.MULTILINE), kind
    for path in (
        "/v1/model",
        "/v1/updates",
        "/v1/status",
        "/v1/clients/me",
        "/v1/events",
        "/metrics",
        "/healthz",
        "/readyz",
    ):
        assert path in text
