"""The command line answers at once: torch is imported only by commands that compute."""

import subprocess
import sys

import pytest
import typer

from cdfl.cli import COMMANDS, app

from .small import call

CALL = """
import sys
from cdfl.cli import app
try:
    app()
finally:
    print(*sorted({"torch", "numpy", "sqlalchemy"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["status", "--help"], ["status", "http://127.0.0.1:9"]]
)
def test_torch_is_not_imported(arguments):
    ended = subprocess.run([sys.executable, "-c", CALL, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.stderr.splitlines()[-1] == ""
    assert ended.returncode == (2 if "http://127.0.0.1:9" in arguments else 0)


def test_every_command_is_found_and_listed():
    code, page = call("--help")
    assert code == 0
    for name, words in COMMANDS.items():
        assert f"{name} {words}" in page
        assert typer.main.get_command(app).commands[name].load().name == name


def test_a_mistyped_command():
    code, said = call("statis")
    assert code == 2
    assert "Did you mean 'status'?" in said
