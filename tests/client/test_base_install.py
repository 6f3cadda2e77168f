"""A client device installs the base package only."""

import subprocess
import sys

from .test_transport import Site
from .toy import ToyServer

SIM = {"sklearn", "scipy", "PIL", "matplotlib", "pooch", "tqdm"}
SERVER = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "psycopg", "prometheus_client"}  # fsspec comes with torch
CLIENT = {"river", "zstandard", "pandas", "flwr"}

LIVE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # an import of these now fails

import cdfl
from cdfl.client import AsyncClient, FlowerClient, InProcess, Privacy
from cdfl.policy import LossRises
from tests.client.toy import ToyServer, make_data, make_model

server = ToyServer()
client = cdfl.Client("http://server.test", make_model(), "car-7", transport=InProcess(server.handle))
print(client.update(make_data()).outcome, [seen.decided for seen in client.watch([make_data()], LossRises())])
"""


JOIN = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))

from cdfl.cli import app
app()
"""


def run(*command: str) -> str:
    blocked = ",".join(sorted(SIM | SERVER | CLIENT))
    ended = subprocess.run([sys.executable, "-c", *command[:1], blocked, *command[1:]], capture_output=True, text=True)  # noqa: S603
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_client_needs_the_base_install_only():
    assert run(LIVE) == "applied [False]\n"


def test_the_command_too(tmp_path):
    site = Site(ToyServer())
    setup = tmp_path / "setup.py"
    setup.write_text("from tests.client.toy import make_model as model")
    try:
        said = run(JOIN, "join", site.url, "--client-id", "car-7", "--setup", str(setup))
    finally:
        site.close()
    assert said == "car-7: joined, epoch 0, mixture 0.50 0.50\n"
