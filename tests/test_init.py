"""The public names of the package."""

import inspect
import subprocess
import sys
from importlib.metadata import version

import pytest

import cdfl
import cdfl.api
import cdfl.client
import cdfl.core
from cdfl.core.settings import LEAVES, SettingValues


def test_public_names():
    assert dir(cdfl) == cdfl.__all__
    assert cdfl.__version__ == version("cdfl")
    assert (cdfl.Client, cdfl.AsyncClient) == (cdfl.client.Client, cdfl.client.AsyncClient)
    assert (cdfl.run, cdfl.Run, cdfl.Settings) == (cdfl.api.run, cdfl.api.Run, cdfl.core.Settings)
    assert cdfl.scenarios.load_scenario("digits-4").name == "digits-4"
    for name in cdfl.__all__:
        assert getattr(cdfl, name) is not None
    with pytest.raises(AttributeError, match=r"module 'cdfl' has no attribute 'Probleme'; did you mean Problem\?"):
        _ = cdfl.Probleme


@pytest.mark.parametrize("function", [cdfl.run, cdfl.compare, cdfl.serve, cdfl.Settings, cdfl.Settings.replace])
def test_signatures_name_every_setting(function):
    names = set(inspect.signature(function).parameters)
    assert set(LEAVES) <= names
    assert not any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(function).parameters.values()
    )


def test_editors_know_every_setting():
    assert list(SettingValues.__annotations__) == LEAVES


def test_importing_the_package_does_not_import_torch():
    program = "import cdfl, sys; dir(cdfl), cdfl.__version__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603
