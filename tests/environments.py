"""Virtual environments for packages that are too large, or too particular, for the one of the tests."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from .client.real import ROOT, environment


def make_environment(folder: Path, *packages: str) -> Path:
    """Return the interpreter of a new environment with some packages; others come from this environment."""
    run(sys.executable, "-m", "venv", folder).check_returncode()
    python = folder / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    assert installed.returncode == 0, installed.stderr
    asked = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    Path(asked.stdout.strip(), "beside.pth").write_text(sysconfig.get_path("purelib"))
    return python


def run(*command: object) -> "subprocess.CompletedProcess[str]":
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True)  # noqa: S603
