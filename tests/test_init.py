"""The public names of the package."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import cdfl
import cdfl.client
import cdfl.core
import cdfl.sim


def test_public_names():
    assert dir(cdfl) == sorted(cdfl.__all__, key=lambda name: (name.lower() == name, name))
    assert cdfl.__version__ == version("cdfl")
    assert (cdfl.Client, cdfl.AsyncClient) == (cdfl.client.Client, cdfl.client.AsyncClient)
    assert (cdfl.run, cdfl.Run, cdfl.Settings) == (cdfl.sim.run, cdfl.sim.Run, cdfl.core.Settings)
    with pytest.raises(AttributeError, match="module 'cdfl' has no attribute 'ran'"):
        _ = cdfl.ran


def test_importing_the_package_does_not_import_torch():
    program = "import cdfl, sys; dir(cdfl), cdfl.__version__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603
