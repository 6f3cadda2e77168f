"""Models exchanged over Flower's network, no training; setting: `api`.

- "deployment": a SuperLink, a SuperNode a client, and the app of flower_app.py, started with `flwr run`.
- "grpc": `start_server` and `start_client`, which Flower calls deprecated; each client is a process.
"""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from work import Job, Rounds

HERE = Path(__file__).resolve().parent
PORT = 9000
PROJECT = """
[project]
name = "exchange"
version = "1.0.0"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "cdfl"
[tool.flwr.app.components]
serverapp = "flower_app:server_app"
clientapp = "flower_app:client_app"
[tool.flwr.app.config]
job = ""
ends = ""
"""
CONNECTION = """
[superlink]
default = "here"
[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""


# -- SuperLink and SuperNodes


def deployment(job: Job, rounds: Rounds) -> None:
    """As in production: long-running nodes, an app that is sent to them."""
    folder = Path.cwd() / "flower"
    (folder / "home").mkdir(parents=True)
    (folder / "project").mkdir()
    (folder / "home" / "config.toml").write_text(CONNECTION.format(port=PORT))
    (folder / "project" / "pyproject.toml").write_text(PROJECT)
    shutil.copy(HERE / "flower_app.py", folder / "project")
    ends = folder / "ends.json"
    with ExitStack() as running:
        os.environ |= {
            "FLWR_HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # they start each other
            "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{HERE}",  # what the app imports
        }
        link = ["--port", str(PORT), "--disable-runtime-dependency-installation"]
        running.enter_context(process(folder, "flower-superlink", "--insecure", *link))
        time.sleep(10)  # it has no other sign that it is there
        for number in range(job.clients):
            node = ["--superlink", f"127.0.0.1:{PORT}", "--port", str(PORT + 1 + number)]
            running.enter_context(process(folder, "flower-supernode", "--insecure", *node))
        words = f'job="{Path(sys.argv[1]).resolve()}" ends="{ends}"'
        run = ["flwr", "run", str(folder / "project"), "here", "--run-config", words]
        subprocess.run(run, check=True, stdout=sys.stderr)
        while not ends.exists():
            time.sleep(0.2)
        time.sleep(1)
        rounds.ends = json.loads(ends.read_text())


@contextmanager
def process(folder: Path, name: str, *options: str) -> Iterator[None]:
    """One of Flower's programs, until the block ends."""
    started = subprocess.Popen([name, *options], stdout=sys.stderr, cwd=folder)
    try:
        yield
    finally:
        started.terminate()
        started.wait()


# -- start_server and start_client


def grpc(job: Job, rounds: Rounds) -> None:
    """The old way: one connection a client, no processes in between."""
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerConfig, start_server
    from flwr.server.strategy import FedAvg

    class TimedFedAvg(FedAvg):
        """FedAvg that notes when a round is over."""

        def aggregate_fit(self, server_round, results, failures):  # type: ignore[no-untyped-def]
            """As FedAvg does it."""
            if failures:
                raise RuntimeError(f"{len(failures)} clients failed: {failures[0]}")
            found = super().aggregate_fit(server_round, results, failures)
            rounds.done()
            return found

    weights = [value.numpy() for value in job.network().state_dict().values()]
    strategy = TimedFedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=job.clients,
        min_available_clients=job.clients,
        initial_parameters=ndarrays_to_parameters(weights),
    )
    spawn = multiprocessing.get_context("spawn")
    clients = [spawn.Process(target=grpc_client, args=(f"127.0.0.1:{PORT}",)) for _ in range(job.clients)]
    for client in clients:
        client.start()
    start_server(server_address=f"127.0.0.1:{PORT}", config=ServerConfig(num_rounds=job.rounds + 1), strategy=strategy)
    for client in clients:
        client.join()


def grpc_client(address: str) -> None:
    """A client that changes what it gets a little, and sends it back."""
    from flwr.client import NumPyClient, start_client

    class Echo(NumPyClient):
        """Does not train."""

        def fit(self, parameters, config):  # type: ignore[no-untyped-def]
            """Change a little."""
            return [value + np.float32(1e-3) for value in parameters], 1, {}

    start_client(server_address=address, client=Echo().to_client(), max_wait_time=60)


def main() -> None:
    """Exchange."""
    job, rounds = Job.read(), Rounds()
    {"deployment": deployment, "grpc": grpc}[job.setting["api"]](job, rounds)
    rounds.report(job, "flwr")


if __name__ == "__main__":
    main()
