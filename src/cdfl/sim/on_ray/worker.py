"""The process that trains: it keeps data and compiled programs between calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Self

import numpy as np
import torch
from torch import Tensor

from cdfl.algorithms import Algorithm
from cdfl.core import Settings
from cdfl.data import Federation, Samples
from cdfl.device import torch_threads
from cdfl.on_ray.serialization import Serialized, deserialize
from cdfl.scenarios import Scenario
from cdfl.sim.engine import Engines, Training
from cdfl.sim.engine_choice import Precision, make_engines
from cdfl.sim.scenario_instance import ScenarioInstance


@dataclass(frozen=True, eq=False)
class Work:
    """What a worker needs before its first training."""

    scenario: Scenario
    settings: Settings
    federation: Federation  # on the CPU
    dtype: torch.dtype
    device: str
    algorithm: Algorithm  # decides the network that clients train
    precision: Precision

    @classmethod
    def of(cls, instance: ScenarioInstance, algorithm: Algorithm, precision: Precision) -> Self:
        """Return the work of a run. The federation holds the samples already, so the scenario needs none."""
        scenario = replace(instance.scenario, clusters=None, policy=None, stream=None)
        federation, kind = instance.federation.to("cpu"), instance.device.type
        return cls(scenario, instance.settings, federation, instance.dtype, kind, algorithm, precision)


@dataclass(frozen=True, eq=False)
class Order:
    """Some trainings. Each start model is in it once; what the clients draw is a function of these numbers."""

    proximal: bool
    starts: np.ndarray  # (n, P) different models
    start: list[int]  # for each training its row of `starts`
    seed: list[int]  # of its federation
    split: list[str]
    samples: list[tuple[np.ndarray, np.ndarray]]  # clusters, and positions in them
    plans: list[np.ndarray]  # (steps, batch)
    noise_seeds: list[int]

    @classmethod
    def of(cls, trainings: Sequence[Training], *, proximal: bool) -> Self:
        """Describe trainings by numbers."""
        models = {id(training.start): training.start for training in trainings}
        row = {name: place for place, name in enumerate(models)}
        return cls(
            proximal,
            torch.stack([model.cpu() for model in models.values()]).numpy(),
            [row[id(training.start)] for training in trainings],
            [training.federation.seed for training in trainings],
            [training.samples.split for training in trainings],
            [(training.samples.cluster, training.samples.index) for training in trainings],
            [training.plan.numpy() for training in trainings],
            [training.noise_seed for training in trainings],
        )


class Worker:
    """Trains clients as the local engine does, one order at a time."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.done = 0  # steps of single clients, in all orders
        self.instance: ScenarioInstance
        self.engines: Engines
        self.federations: dict[int, Federation] = {}

    def start(self, serialized: Serialized) -> str:
        """Take the data and prepare the network; return the version of this package."""
        work: Work = deserialize(serialized)
        with torch_threads(self.cores):
            federation = work.federation.to(work.device)
            self.instance = ScenarioInstance(work.scenario, federation, work.settings, work.dtype)
            self.federations = {federation.seed: federation}
            self.engines = make_engines(self.instance, work.algorithm, precision=work.precision, cores=self.cores)
        for trainer in (self.engines.trainer, self.engines.pretrainer):
            trainer.on_step = self._count
        return version("cdfl")

    def work(self, order: Order) -> np.ndarray:
        """Train; return the local models (B, P)."""
        starts = torch.tensor(order.starts, device=self.instance.device)
        trainings = [self._training(order, starts, place) for place in range(len(order.plans))]
        trainer = self.engines.trainer if order.proximal else self.engines.pretrainer
        with torch_threads(self.cores):
            found: np.ndarray = trainer.train(trainings).cpu().numpy()
        return found

    def steps(self) -> int:
        """Return the number of steps so far, also while `work` runs."""
        return self.done

    def _training(self, order: Order, starts: Tensor, place: int) -> Training:
        cluster, index = order.samples[place]
        samples = Samples(order.split[place], cluster, index)
        plan = torch.tensor(order.plans[place])
        federation = self._federation(order.seed[place])
        return Training(federation, samples, starts[order.start[place]], plan, order.noise_seeds[place])

    def _federation(self, seed: int) -> Federation:
        if seed not in self.federations:
            self.federations[seed] = self.instance.federation.reseeded(seed)
        return self.federations[seed]

    def _count(self, steps: int) -> None:
        self.done += steps
