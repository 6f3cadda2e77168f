"""The engines of a run whose clients are trained on a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from cdfl.algorithms import Algorithm
from cdfl.on_ray.connection import RayEngine, connected
from cdfl.on_ray.pool import Pool
from cdfl.on_ray.serialization import serialize
from cdfl.sim.cpu_threads import Workers
from cdfl.sim.engine import Engines
from cdfl.sim.engine_choice import MakeEngines, Precision, make_engines
from cdfl.sim.on_ray.trainer import RayTrainer
from cdfl.sim.on_ray.worker import Work, Worker
from cdfl.sim.scenario_instance import ScenarioInstance


@contextmanager
def cluster_engines(engine: RayEngine) -> Iterator[MakeEngines]:
    """Connect to a cluster, and yield a function that makes engines: they train there, and evaluate here."""
    pools: list[Pool] = []
    with connected(engine) as ray:

        def make(instance: ScenarioInstance, algorithm: Algorithm, *, precision: Precision) -> Engines:
            local = make_engines(instance, algorithm, precision=precision)
            work = serialize(Work.of(instance, algorithm, precision))
            pools.append(pool := Pool(ray, engine, Worker, work, gpus=instance.device.type == "cuda"))
            trainer, pretrainer = (
                RayTrainer(pool, proximal=proximal, in_stacks=not isinstance(like, Workers))
                for proximal, like in ((True, local.trainer), (False, local.pretrainer))
            )
            return replace(local, trainer=trainer, pretrainer=pretrainer)

        try:
            yield make
        finally:
            for pool in pools:
                pool.close()
