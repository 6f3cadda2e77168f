"""Flower's Simulation Runtime on Ray, strategy FedAvg; setting: `num_cpus` of a client (Flower's default is 2).

`run_simulation` starts what `flwr run` starts, without a project folder.
"""

import sys

from flower_app import TimedFedAvg
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from work import Job, Rounds, client_data, train

JOB_FILE = sys.argv[1]
rounds = Rounds()
server_app = ServerApp()


def make_client_app(job_file: str) -> ClientApp:
    """The client's side, told where its job is: it runs in another process."""
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        job = Job.read(job_file)
        images, labels = client_data(job.data)  # read once in each worker
        client = int(context.node_config["partition-id"])
        model = job.network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(model, images[client], labels[client], job)
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": job.samples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """All clients in every round, no evaluation."""
    job = Job.read(JOB_FILE)
    strategy = TimedFedAvg(rounds, job.clients)
    strategy.start(grid, ArrayRecord(job.network().state_dict()), num_rounds=job.rounds + 1)


def main() -> None:
    """Simulate."""
    job = Job.read()
    run_simulation(
        server_app,
        make_client_app(JOB_FILE),
        num_supernodes=job.clients,
        backend_config={
            "init_args": {"num_cpus": 2, "_node_ip_address": "127.0.0.1", "logging_level": "ERROR"},
            "client_resources": {"num_cpus": job.setting["num_cpus"], "num_gpus": 0.0},
        },
    )
    rounds.report(job, "flwr", "ray")


if __name__ == "__main__":
    main()
