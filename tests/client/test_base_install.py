"""A client device installs the base package only, and does not import what takes seconds."""

import subprocess
import sys

import pytest

from .real import ROOT
from .site import Site
from .toy import ToyServer

pytestmark = pytest.mark.slow

SIM = {"sklearn", "scipy", "PIL", "matplotlib", "pooch", "tqdm"}
SERVER = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "psycopg", "prometheus_client"}  # fsspec comes with torch
CLIENT = {"river", "zstandard", "pandas", "flwr"}

LIVE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))  # an import of these now fails

import cdfl
import torch
from cdfl.client import AsyncClient, FlowerClient, Privacy
from cdfl.core.router import calibrate
from cdfl.upload_policies import LossRises
from tests.client.toy import ToyServer, make_data, make_model

client = cdfl.Client("http://server.test", make_model(), "car-7", transport=ToyServer().transport)
print(client.update(make_data()).outcome, [turn.decided for turn in client.watch([make_data()], LossRises())])
calibrate(torch.randn(20, 2), torch.arange(20) % 2)  # as a server does before it opens

assert "torch._dynamo" not in sys.modules  # the compiler
from cdfl.cli import app
app()
"""


def test_client_and_join_need_only_the_base_install(tmp_path):
    site, setup = Site(ToyServer()), tmp_path / "setup.py"
    setup.write_text("import cdfl\nfrom tests.client.toy import make_model\nproblem = cdfl.Problem(model=make_model)\n")
    command = [sys.executable, "-c", LIVE, ",".join(sorted(SIM | SERVER | CLIENT))]
    command += ["join", site.url, "--client-id", "car-7", "--setup", str(setup)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)  # noqa: S603
    finally:
        site.close()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "applied [False]\ncar-7: joined, epoch 0, mixture 0.50 0.50\n"
