"""Simulations of one network that run side by side and train their clients in common stacks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from threading import Lock

from torch import Tensor

from cdfl.core import flatten
from cdfl.core.batches import batch_plan
from cdfl.run_events import Event, pretraining
from cdfl.sim.engine import Trainer, Training, joined, no_progress
from cdfl.sim.scenario_instance import ScenarioInstance
from cdfl.sim.simulation import Bookmark, Request, Simulation, Steps


class SimulationGroup:
    """Simulations of one network that run side by side and train their clients in common stacks.

    `bookmarks` belong to the last moment at which all simulations waited for a stack. Resumed from there, they request
    the same stack again, so the rest of the run is the same, to the bit on a CPU.
    """

    def __init__(self, simulations: Sequence[Simulation]) -> None:
        self.simulations = simulations
        self.engines = simulations[0].engines
        self.bookmarks: dict[int, Bookmark] = {}

    def events(self) -> Iterator[tuple[int, Event]]:
        """Run all simulations to their end; yield (which, event)."""
        instances = {id(simulation.instance): simulation.instance for simulation in self.simulations}.values()
        untrained = [instance for instance in instances if instance.start is None]
        with counted_pretraining(self.engines.pretrainer, untrained):
            for _ in self._advance(dict(enumerate(map(_pretraining, untrained)))):
                pass  # pre-training has no events
        yield from self._advance({which: simulation.steps() for which, simulation in enumerate(self.simulations)})

    def _advance(self, running: dict[int, Steps]) -> Iterator[tuple[int, Event]]:
        answers: dict[int, Tensor | None] = dict.fromkeys(running)
        while running:
            requests: dict[int, Request] = {}
            for which, steps in list(running.items()):
                try:
                    step = steps.send(answers[which])  # type: ignore[arg-type]
                    while not isinstance(step, Request):
                        yield which, step
                        step = next(steps)
                    requests[which] = step
                except StopIteration:
                    del running[which]
            if all(request.proximal for request in requests.values()):
                waiting = {which: self.simulations[which].bookmark for which in requests}
                self.bookmarks = {which: place for which, place in waiting.items() if place is not None}
            answers = {}
            for proximal in (False, True):
                asking = [which for which, request in requests.items() if request.proximal is proximal]
                if asking:
                    wanted = [training for which in asking for training in requests[which].trainings]
                    models = (self.engines.trainer if proximal else self.engines.pretrainer).train(wanted)
                    sizes = [len(requests[which].trainings) for which in asking]
                    answers |= dict(zip(asking, models.split(sizes), strict=True))


@contextmanager
def counted_pretraining(trainer: Trainer, instances: Sequence[ScenarioInstance]) -> Iterator[None]:
    """Report the progress of pre-training to `record.pretraining`, as (steps so far, steps in all)."""
    report, total, turn, done = pretraining.get(), 0, Lock(), 0
    for instance in instances:
        sizes = [
            len(instance.federation.all_samples("pretraining", k)) for k in range(instance.federation.num_clusters)
        ]
        passes, batch = instance.settings.pretraining, instance.settings.training.batch_size
        total += ceil(passes.shared_epochs * sum(sizes) / min(batch, sum(sizes)))
        total += sum(ceil(passes.separate_epochs * size / min(batch, size)) for size in sizes)

    def count(steps: int) -> None:
        nonlocal done
        with turn:  # several threads train
            done = min(total, done + steps)
            report(done, total)

    trainer.on_step = count if instances else no_progress
    try:
        yield
    finally:
        trainer.on_step = no_progress


def _pretraining(instance: ScenarioInstance) -> Steps:
    """Set `instance.start` (K, P) to what `cdfl.core.pretrain` returns, but train the clusters together."""
    shuffle, batch_size = instance.pretraining_shuffle(), instance.settings.training.batch_size
    passes = instance.settings.pretraining
    sets = [instance.federation.all_samples("pretraining", k) for k in range(instance.federation.num_clusters)]
    plan = batch_plan(sum(map(len, sets)), batch_size, passes.shared_epochs, shuffle)
    noise = instance.pretraining_noise_seed
    everything = Training(instance.federation, joined(sets), flatten(instance.model), plan, noise)
    shared = (yield Request([everything], proximal=False))[0]
    plans = [batch_plan(len(own), batch_size, passes.separate_epochs, shuffle) for own in sets]
    separate = [Training(instance.federation, own, shared, plan, noise) for own, plan in zip(sets, plans, strict=True)]
    instance.start = yield Request(separate, proximal=False)
