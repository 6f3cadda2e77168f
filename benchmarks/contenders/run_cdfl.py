"""cdfl's own engines; setting: `engine` (workers or stack) and `precision`."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from work import LEARNING_RATE, WEIGHT_DECAY, Job, Rounds

from cdfl.core import Settings, flatten
from cdfl.core.batches import batch_plan
from cdfl.data import Cluster, Dataset, Federation, PaperDrift, Samples, Sizes
from cdfl.sim.client_stack import Stack
from cdfl.sim.cpu_threads import Workers
from cdfl.sim.engine import Trainer, Training


def main() -> None:
    """Train, average, again."""
    job, rounds = Job.read(), Rounds()
    federation = as_federation(job)
    model = job.network()
    settings = Settings(
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        proximal_strength=0.0,  # what the others train: the proximal term is computed, with a weight of nothing
        batch_size=job.batch_size,
        local_epochs=job.epochs,
    )
    engine: Trainer
    if job.setting["engine"] == "stack":
        engine = Stack(model, cross_entropy, settings)
    else:
        engine = Workers(model, cross_entropy, settings, precision=job.setting["precision"])
    average, shuffle = flatten(model), torch.Generator().manual_seed(0)
    owned = np.array_split(np.arange(job.clients * job.samples), job.clients)
    zeros = np.zeros(job.samples, np.int64)
    for _ in range(job.rounds + 1):
        trainings = [
            Training(
                federation,
                Samples("train", zeros, index),
                average,
                batch_plan(job.samples, job.batch_size, job.epochs, shuffle),
                noise_seed=0,
            )
            for index in owned
        ]
        average = engine.train(trainings).mean(dim=0)
        rounds.done()
    rounds.report(job, "cdfl")


def as_federation(job: Job) -> Federation:
    """All clients' images as the train half of one cluster."""
    data = torch.load(job.data, weights_only=True)
    images, labels = data["images"].flatten(0, 1), data["labels"].flatten()
    spare = images[:2], labels[:2]  # for the server's sets, which are not used
    dataset = Dataset("work", torch.cat([spare[0], images]), torch.cat([spare[1], labels]), *spare, num_classes=10)
    sizes = Sizes(low=1, high=1, test=1, pretraining=2, proxy=1)
    return Federation([Cluster("work", dataset)], PaperDrift(), sizes)


if __name__ == "__main__":
    main()
