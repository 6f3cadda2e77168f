"""pfl-research: SimulatedBackend and FederatedAveraging; setting: `processes`, each with its share of the cores.

Several processes are started as its guide "Fast distributed simulations" says: the same script once for each rank.
"""

import os
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from work import LEARNING_RATE, WEIGHT_DECAY, Job, Rounds, client_data

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def main() -> None:
    """Start the other processes, then simulate; the first one reports."""
    job = Job.read()
    others = []
    processes = job.setting["processes"]
    if processes > 1 and RANK not in os.environ:
        os.environ[ADDRESSES] = ",".join(f"127.0.0.1:{29400 + rank}" for rank in range(processes))
        os.environ[RANK] = "0"
        others = [
            subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, RANK: str(rank)}, stdout=sys.stderr)
            for rank in range(1, processes)
        ]
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    simulate(job)
    for other in others:
        other.wait(60)


def simulate(job: Job) -> None:
    """Run the algorithm in this process."""
    # pfl joins the other processes when it is imported.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class WithLoss(nn.Module):
        """The network with the two methods pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.network = job.network()

        def loss(self, images: Tensor, labels: Tensor) -> Tensor:
            self.train()
            return cross_entropy(self.network(images), labels)

        def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
            return {}

    class Stopwatch(TrainingProcessCallback):
        """Notes when a round is over."""

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            rounds.done()
            return False, Metrics()

    rounds = Rounds()
    images, labels = client_data(job.data)
    module = WithLoss()
    model = PyTorchModel(
        module,
        local_optimizer_create=lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, weight_decay=WEIGHT_DECAY),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),  # FedAvg: the next model is the average
        amp_dtype=torch.bfloat16 if job.setting.get("precision") == "bfloat16" else None,
    )
    users = list(range(job.clients))
    dataset = FederatedDataset(
        lambda user: Dataset(raw_data=[images[user], labels[user]]), get_user_sampler("minimize_reuse", users)
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds + 1,
            evaluation_frequency=10**9,
            train_cohort_size=job.clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=dataset, val_data=None),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=job.epochs, local_learning_rate=LEARNING_RATE, local_batch_size=job.batch_size
        ),
        model_eval_params=None,
        callbacks=[Stopwatch()],
    )
    if os.environ.get(RANK, "0") == "0":
        rounds.report(job, "pfl", threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
