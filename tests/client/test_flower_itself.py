"""The tests of the Flower adapter once more, with Flower's own class.

Flower asks for an older typer than this package is developed with, so it gets a virtual environment of its own: what it
needs is found there first, all else (torch, pytest) in ours. That takes a minute and a package index, hence on request.
"""

import os
import re
import tempfile
from pathlib import Path

import pytest

from ..environments import make_environment, run

FLOWER = "flwr==1.41.0"
ASKED = "CDFL_TEST_FLOWER"


@pytest.mark.skipif(not os.environ.get(ASKED), reason=f"installs {FLOWER}; `make test-flower` runs it")
def test_with_flower_installed():
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder), FLOWER)
        command = [python, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning"]
        ended = run(*command, "tests/client/test_flower.py")
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"^PASSED .*test_it_is_flowers_own_class", ended.stdout, re.MULTILINE), ended.stdout
