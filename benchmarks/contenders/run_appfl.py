"""APPFL's serial simulation, FedAvg, as its guide "Simulating PPFL (Serial)" says; setting: `optimize_memory`."""

import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import TensorDataset
from work import LEARNING_RATE, WEIGHT_DECAY, Job, Rounds, client_data

HERE = Path(__file__).resolve()
NOTES = []
try:
    import piq  # noqa: F401
except (ImportError, RuntimeError) as error:
    # It wants a torchvision built for the same torch. APPFL imports it for its reports on data, which nothing here asks
    # for, so an empty module does.
    sys.modules["piq"] = types.ModuleType("piq")
    NOTES.append(f"piq, which APPFL imports and training does not use, was left out: {error}")

from appfl.agent import SimClientAgent, SimServerAgent  # noqa: E402


def network(job_file: str) -> Any:
    """What APPFL calls to make the network."""
    return Job.read(job_file).network()


def accuracy(targets: np.ndarray, outputs: np.ndarray) -> float:
    """What APPFL's trainer reports of every epoch."""
    return float((targets == outputs.argmax(axis=1)).mean())


def configuration(job: Job, job_file: str, logs: str) -> dict[str, Any]:
    """APPFL's configuration, server and clients in one."""
    optimize_memory = job.setting["optimize_memory"]
    return {
        "client_configs": {
            "optimize_memory": optimize_memory,
            "train_configs": {
                "trainer": "VanillaTrainer",
                "mode": "epoch",
                "num_local_epochs": job.epochs,
                "optim": "Adam",
                "optim_args": {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY},
                "loss_fn": "CrossEntropyLoss",
                "metric_path": str(HERE),
                "metric_name": "accuracy",
                "train_batch_size": job.batch_size,
                "train_data_shuffle": True,
                "device": "cpu",
                "do_validation": False,
                "optimize_memory": optimize_memory,
                "logging_output_dirname": logs,
            },
            "model_configs": {"model_path": str(HERE), "model_name": "network", "model_kwargs": {"job_file": job_file}},
        },
        "server_configs": {
            "optimize_memory": optimize_memory,  # each part reads its own
            "num_clients": job.clients,
            "num_global_epochs": job.rounds + 1,
            "scheduler": "SyncScheduler",
            "scheduler_kwargs": {
                "num_clients": job.clients,
                "same_init_model": True,
                "optimize_memory": optimize_memory,
            },
            "aggregator": "FedAvgAggregator",
            "aggregator_kwargs": {"client_weights_mode": "equal", "optimize_memory": optimize_memory},
            "device": "cpu",
            "logging_output_dirname": logs,
            "logging_output_filename": "server",
        },
    }


def main() -> None:
    """Train, hand in, load the average, again."""
    job, rounds = Job.read(), Rounds()
    images, labels = client_data(job.data)
    with tempfile.TemporaryDirectory() as logs:
        config = configuration(job, sys.argv[1], logs)
        server = SimServerAgent(config)
        clients = [
            SimClientAgent(config["client_configs"], client_id=f"client-{i}", client_dataset=TensorDataset(*pair))
            for i, pair in enumerate(zip(images[: job.clients], labels, strict=False))
        ]
        first = server.get_parameters(serial_run=True)
        for client in clients:
            client.load_parameters(first)
        while not server.training_finished():
            futures = []
            for client in clients:
                client.train()
                parameters = client.get_parameters()
                local_model, metadata = parameters if isinstance(parameters, tuple) else (parameters, {})
                futures.append(server.global_update(client.get_id(), local_model, **metadata))
            for client, future in zip(clients, futures, strict=True):
                client.load_parameters(future.result() if hasattr(future, "result") else future)
            rounds.done()
        rounds.report(job, "appfl", notes=NOTES)


if __name__ == "__main__":
    main()
