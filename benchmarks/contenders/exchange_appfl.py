"""Models exchanged over APPFL's gRPC, FedAsync, no training; setting: `optimize_memory`.

As its guide "Federated Learning over gRPC" says, with a client that does not train: the server answers every upload at
once. Server and clients are processes.
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.queues import SimpleQueue
from typing import Any

from run_appfl import NOTES, configuration  # first, since it makes APPFL importable
from work import Job, Rounds

ADDRESS = "127.0.0.1:9100"


def server_configuration(job: Job, job_file: str, logs: str) -> Any:
    """The config of a server that waits for no client."""
    from appfl.config import ServerAgentConfig
    from omegaconf import OmegaConf

    options = configuration(job, job_file, logs)
    server = options["server_configs"]
    server |= {"scheduler": "AsyncScheduler", "aggregator": "FedAsyncAggregator"}
    server["num_global_epochs"] = job.clients * (job.rounds + 1)
    server["scheduler_kwargs"] = {"num_clients": job.clients, "same_init_model": True}
    server["aggregator_kwargs"] |= {"staleness_fn": "constant", "alpha": 0.9}
    return OmegaConf.merge(OmegaConf.structured(ServerAgentConfig), OmegaConf.create(options))


def serve(job_file: str) -> None:
    """The server's process."""
    from appfl.agent import ServerAgent
    from appfl.comm.grpc import GRPCServerCommunicator
    from appfl.comm.grpc import serve as serve_grpc

    job = Job.read(job_file)
    with tempfile.TemporaryDirectory() as logs:
        agent = ServerAgent(server_agent_config=server_configuration(job, job_file, logs))
        options = {"optimize_memory": job.setting["optimize_memory"]}
        serve_grpc(GRPCServerCommunicator(agent, logger=agent.logger, **options), server_uri=ADDRESS)


def exchange(job_file: str, number: int, told: "SimpleQueue[float]") -> None:
    """A client's process: get a model, change it a little, send it, again."""
    from appfl.comm.grpc import GRPCClientCommunicator

    job = Job.read(job_file)
    options = {"optimize_memory": job.setting["optimize_memory"]}
    link = GRPCClientCommunicator(f"client-{number}", server_uri=ADDRESS, **options)
    link.get_configuration()
    model = link.get_global_model(init_model=True)
    for _ in range(job.rounds + 1):
        model = model[0] if isinstance(model, tuple) else model
        model = link.update_global_model({name: value + 1e-3 for name, value in model.items()})
        told.put(time.time())


def ends_of_rounds(times: list[float], clients: int) -> Iterator[float]:
    """Exchange without waiting; a round ends after as many exchanges as there are clients."""
    yield from sorted(times)[clients - 1 :: clients]


def main() -> None:
    """Exchange."""
    job, rounds = Job.read(), Rounds()
    spawn = multiprocessing.get_context("spawn")
    told = spawn.SimpleQueue()
    server = spawn.Process(target=serve, args=(sys.argv[1],))
    clients = [spawn.Process(target=exchange, args=(sys.argv[1], number, told)) for number in range(job.clients)]
    for process in (server, *clients):
        process.start()
    times = [told.get() for _ in range(job.clients * (job.rounds + 1))]
    for client in clients:
        client.join()
    server.terminate()
    rounds.ends = list(ends_of_rounds(times, job.clients))
    rounds.report(job, "appfl", notes=NOTES)


if __name__ == "__main__":
    main()
