"""The fast simulation: it trains clients together. It gives the events of `cdfl.sim.reference_simulation`.

A client does not depend on other clients between a reply and its next upload. So if the next upload needs training, the
simulation trains all waiting clients together. It then applies their uploads one by one, in the order of the run.
Scores do not influence the run; the simulation computes them in batches, before it emits their events.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cdfl.algorithms import Algorithm, Assignment, ClientView
from cdfl.core import NotFiniteError, Reply, Upload, flatten
from cdfl.core.batches import batch_plan
from cdfl.core.losses import each_loss, row_losses
from cdfl.data import Draw, Samples
from cdfl.metrics import ACCURACY, Metric
from cdfl.policy import ALWAYS, Memory, Policy, decide_upload
from cdfl.record import Diverged, Event, pretraining
from cdfl.sim.engine import Engines, Trainer, Training, fetch_all, joined, no_progress
from cdfl.sim.event_builders import (
    Scores,
    UploadInfo,
    clusters_event,
    separated_event,
    shortfall,
    started_event,
    summarize,
    uploaded_event,
)
from cdfl.sim.time_models import Tick, TimeModel
from cdfl.sim.workload import TurnData, Workload

MOST_WAITING = 256  # at most this many uploads wait for their scores
NUMBERS = 2**26  # at most this many outputs are in memory at once, where networks have many


@dataclass
class Client:
    """What one client holds, and what was computed ahead for its next upload."""

    reply: Reply
    state: Any  # of the server at that reply; None when no later turn of this client needs it
    turn_data: TurnData  # of its next turn
    assignment: Assignment
    turns: int = 0
    updates: int = 0
    memory: Memory = ()
    uploads: bool = False  # its policy's decision at the next turn
    trained: "Trained | None" = None
    ahead: TurnData | None = None  # of the turn after that


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished training whose upload is not due yet."""

    local_model: Tensor  # (P,)
    losses: Tensor | None  # (K,) on the proxy sets
    finite: bool


@dataclass(frozen=True, eq=False)
class _Unscored:
    """An answered upload that has no scores yet."""

    info: UploadInfo
    draw: Draw
    held: Tensor  # (P,) what its client had before training
    local_model: Tensor
    reply: Reply


class Request(NamedTuple):
    """Trainings that a simulation waits for; `proximal` is False during pre-training."""

    trainings: list[Training]
    proximal: bool


Steps = Generator["Event | Request", Tensor, None]  # send the models (B, P) for every request


@dataclass(frozen=True, eq=False)
class Bookmark:
    """The state of a run between two stacks. Resumed from here, the run gives the same result."""

    state: Any
    clients: dict[int, Client]
    ticks: int  # ticks taken so far
    attempts: int  # uploads among them, including diverged ones
    num_events: int  # events emitted so far


class Simulation:
    """One run. Iterate over `events`. `state` is the server's; `bookmark` is the last point to resume from."""

    def __init__(
        self,
        workload: Workload,
        algorithm: Algorithm,
        time_model: TimeModel,
        engines: Engines,
        policy: Policy = ALWAYS,
    ) -> None:
        self.workload = workload
        self.algorithm = algorithm
        self.engines = engines
        self.policy = policy
        self.time_model = time_model
        self.bookmark: Bookmark | None = None
        self.emitted: list[Event] = []
        self.state: Any = None
        self.clients: dict[int, Client] = {}
        self._waiting: list[_Unscored | Diverged | tuple[int, Tensor]] = []

    def resume(self, bookmark: Bookmark, events: Sequence[Event]) -> None:
        """Continue from a bookmark, given the run's events; events after the bookmark are emitted again."""
        if len(events) < bookmark.num_events:
            raise ValueError(
                f"the checkpoint was written after {bookmark.num_events} events, but only {len(events)} are left; "
                "restore the events file, or start a new run"
            )
        self.bookmark, self.emitted = bookmark, list(events[: bookmark.num_events])

    def free_memory(self) -> None:
        """Drop the clients' models when a run is over."""
        self.clients, self.bookmark, self._waiting = {}, None, []

    def events(self) -> Iterator[Event]:
        """Run this simulation alone, and yield its events."""
        return (event for _, event in SimulationGroup([self]).events())

    def steps(self) -> Steps:
        """Yield events, and requests; the caller sends the local models (B, P) of each request."""
        scenario = self.workload.scenario
        if self.bookmark is None:
            yield from self._begin()
        place = self.bookmark = self.bookmark or self._mark(ticks=0, attempts=0)
        self.state, self.clients = place.state, {number: replace(held) for number, held in place.clients.items()}

        ticks = self.workload.ticks(self.time_model)
        left: Counter[int] | None = None
        if self.policy == ALWAYS:  # every turn is an upload, so the last one of each client is known
            planned = list(_until(ticks, scenario.num_uploads))
            left = Counter(tick.client for tick in planned[place.ticks :] if tick.kind == "turn")
            ticks = iter(planned)
        attempts = place.attempts
        passed: Counter[str] = Counter()
        for taken, (time, number, kind) in enumerate(ticks):
            if taken >= place.ticks and attempts == scenario.num_uploads:
                break
            passed[kind] += 1
            if taken < place.ticks:
                continue
            if kind == "join":
                self._join(number)
                continue
            if kind == "leave":
                del self.clients[number]
                continue
            client = self.clients[number]
            if not client.uploads:
                client.turns += 1
                self._prepare(number)
                continue
            if client.trained is None:
                if not 0 < len(self._waiting) < self.engines.scores_together:
                    yield from self._emit()
                    self.bookmark = self._mark(taken, attempts)
                ready = [
                    other
                    for other, held in self.clients.items()
                    if held.uploads and held.trained is None and (left is None or left[other] > 0)
                ]
                models = yield Request([self._training(other) for other in ready], proximal=True)
                self._take_trained(ready, models)
            attempts += 1
            self._apply(time, number)
            if left is None or left[number] > 1:
                self._prepare(number)
            else:  # its last upload
                client.state = None
            if left is not None:
                left[number] -= 1
            if len(self._waiting) >= MOST_WAITING:
                yield from self._emit()
        if self.state.epoch % scenario.num_clients != 0:
            self._score_clusters()
        yield from self._emit()
        yield summarize(self.emitted, scenario.num_clients, shortfall(self.workload, self.emitted, passed))

    def _begin(self) -> Steps:
        """Initialization: start the server from the pre-trained clusters, and score them."""
        workload = self.workload
        self.emitted.append(started_event(workload, self.algorithm))
        yield self.emitted[-1]
        if workload.start is None:
            raise RuntimeError("the clusters are not pre-trained; iterate over `events`, not over `steps`")
        self.state = self.algorithm.initial(workload.start, self.evaluate, workload.layout.num_parameters)
        self._score_clusters()
        yield from self._emit()
        if workload.separated is None:  # runs of one seed begin with the same clusters
            workload.separated = separated_event(workload, workload.start, self.engines.evaluator.outputs)
        self.emitted.append(workload.separated)
        yield self.emitted[-1]

    def _mark(self, ticks: int, attempts: int) -> Bookmark:
        """Return a bookmark of this moment. It copies references only: tensors never change in place."""
        clients = {number: replace(held) for number, held in self.clients.items()}
        return Bookmark(self.state, clients, ticks, attempts, len(self.emitted))

    # -- the client

    def _join(self, number: int) -> None:
        reply = self.algorithm.join(self.state)
        assignment = Assignment(reply.personal_model, reply.epoch)
        drawn = self.workload.turn_data(number, 0)
        self.clients[number] = Client(reply, self.state, drawn, assignment, ahead=drawn)
        self._prepare(number)

    def _prepare(self, number: int) -> None:
        """Give a client its reply and its next data, and let its policy decide."""
        client, workload = self.clients[number], self.workload
        client.turn_data = client.ahead or workload.turn_data(number, client.turns)
        client.ahead, client.trained = None, None
        draw = client.turn_data.draw
        view = ClientView(
            losses=lambda models: self._sample_losses(models, draw.train),
            true_mixture=torch.from_numpy(draw.true_mixture),
        )
        client.assignment = self.algorithm.assign(client.state, client.reply, view)
        if self.policy == ALWAYS:  # needs no observation
            client.uploads = True
            return
        seen = workload.observe(client.assignment.personal_model, draw, number, client.turns)
        client.memory, client.uploads = decide_upload(self.policy, client.memory, seen)

    def _training(self, number: int) -> Training:
        client = self.clients[number]
        draw, plan, noise_seed = client.turn_data
        return Training(self.workload.federation, draw.train, client.assignment.personal_model, plan, noise_seed)

    def _take_trained(self, numbers: Sequence[int], models: Tensor) -> None:
        """Store trained models with their losses until their uploads are due."""
        for number in numbers:  # draw the next data while the GPU is still training
            self.clients[number].ahead = self.workload.turn_data(number, self.clients[number].turns + 1)
        finite = torch.isfinite(models).all(dim=1).tolist()
        losses = self._proxy_losses(models) if self.algorithm.uses_proxy else None
        known = finite if losses is None else torch.isfinite(losses).all(dim=1).tolist()
        for row, number in enumerate(numbers):
            client = self.clients[number]
            own_losses = None if losses is None else losses[row]
            client.trained = Trained(models[row].clone(), own_losses, finite[row])
            if known[row] and self.policy == ALWAYS:  # no later turn needs the K models of this state
                client.state = None

    # -- the server

    def _apply(self, time: float, number: int) -> None:
        """Apply one upload. A diverged one is refused and changes nothing."""
        client = self.clients[number]
        trained, assignment, turn_data = client.trained, client.assignment, client.turn_data
        client.turns, client.trained = client.turns + 1, None
        try:
            if trained is None or not trained.finite:
                raise NotFiniteError("the training has diverged")
            upload = Upload(
                trained.local_model,
                assignment.base_epoch,
                number,
                losses=trained.losses,
                mixture=assignment.mixture,
                base_model=assignment.personal_model,
            )
            earlier = self.state.epoch
            self.state, reply = self.algorithm.server_update(self.state, upload, assignment, self.evaluate)
        except NotFiniteError:
            self._waiting.append(Diverged(time, number))
            return
        info = UploadInfo(time, number, client.updates, turn_data.plan.numel(), self.state.epoch)
        self._waiting.append(_Unscored(info, turn_data.draw, client.reply.personal_model, trained.local_model, reply))
        if self.state.epoch > earlier and self.state.epoch % self.workload.scenario.num_clients == 0:
            self._score_clusters()
        client.reply, client.state, client.updates = reply, self.state, client.updates + 1

    def evaluate(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the proxy set of its cluster (n,)."""
        return self.engines.evaluator.evaluate(models, clusters, self.workload.proxy_sets)

    def _proxy_losses(self, models: Tensor) -> Tensor:
        """Return the losses (B, K) of many models (B, P) on all proxy sets."""
        sets, loss = self.workload.proxy_sets, self.workload.loss
        if loss is not cross_entropy or sets[0][1].ndim > 1:
            return torch.stack([self._losses_on(models, *own) for own in sets], dim=1).double().cpu()
        sizes = [len(targets) for _, targets in sets]
        outputs = self.engines.evaluator.outputs(models, torch.cat([inputs for inputs, _ in sets]))
        logits = torch.stack(outputs)  # (B, n, classes)
        targets = torch.cat([own for _, own in sets]).expand(len(logits), -1)  # (B, n)
        losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
        return torch.stack([own.mean(dim=1) for own in losses.split(sizes, dim=1)], dim=1).double().cpu()

    def _losses_on(self, models: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss (B,) of each model (B, P) on common samples."""
        together = max(1, NUMBERS // (len(inputs) * self.workload.output_size))
        found = []
        for some in models.split(together):
            outputs = torch.stack(self.engines.evaluator.outputs(some, inputs))  # (B, n, ...)
            found.append(row_losses(self.workload.loss, outputs, targets.expand(len(some), *targets.shape)))
        return torch.cat(found)

    def _sample_losses(self, models: Tensor, samples: Samples) -> Tensor:
        """Return the loss of every model (K, P) on every sample, (n, K)."""
        inputs, targets = self.workload.inputs(samples)
        outputs = self.engines.evaluator.outputs(models, inputs)
        return torch.stack([each_loss(self.workload.loss, out, targets) for out in outputs], dim=1)

    # -- scores, which do not influence the run

    def _score_clusters(self) -> None:
        self._waiting.append((self.state.epoch, self.algorithm.cluster_models(self.state)))

    def _emit(self) -> Iterator[Event]:
        """Score what is waiting, and yield its events in order."""
        waiting, self._waiting = self._waiting, []
        answered = [item for item in waiting if isinstance(item, _Unscored)]
        scores = iter(self._scores(answered) if answered else ())
        replies = iter(_on_host([item.reply for item in answered]))
        for item in waiting:
            event: Event
            if isinstance(item, _Unscored):
                event = uploaded_event(self.workload, self.algorithm, item.info, item.draw, next(replies), next(scores))
            elif isinstance(item, Diverged):
                event = item
            else:
                epoch, models = item
                scored, losses = self._cluster_scores(models), self._proxy_losses(models)
                event = clusters_event(self.workload, epoch, models, scored, losses)
            self.emitted.append(event)
            yield event

    def _scores(self, answered: Sequence[_Unscored]) -> list[list[Scores]]:
        """Return the scores of each client on its held-out samples, by each metric."""
        together = max(1, NUMBERS // (3 * len(answered[0].draw.test) * self.workload.output_size))
        return [
            scores
            for first in range(0, len(answered), together)
            for scores in self._scores_of(answered[first : first + together])
        ]

    def _scores_of(self, answered: Sequence[_Unscored]) -> list[list[Scores]]:
        ready = fetch_all([(self.workload.federation, item.draw.test) for item in answered], self.workload.dtype)
        models = [item.held for item in answered] + [item.local_model for item in answered]
        models += [item.reply.personal_model for item in answered]
        outputs = self.engines.evaluator.outputs(torch.stack(models), [inputs for inputs, _ in ready] * 3)
        targets, count = [targets for _, targets in ready] * 3, len(answered)
        found = [_score(metric, outputs, targets) for metric in self.workload.metrics]
        return [[Scores(*own[place::count]) for own in found] for place in range(count)]

    def _cluster_scores(self, models: Tensor) -> list[list[float]]:
        """Return the score of each cluster's model on its test set, by each metric."""
        sets = self.workload.test_sets
        outputs = self.engines.evaluator.outputs(models.expand(len(sets), -1), [inputs for inputs, _ in sets])
        targets = [targets for _, targets in sets]
        return [_score(metric, outputs, targets) for metric in self.workload.metrics]


def _score(metric: Metric, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[float]:
    """Return the score of each of many outputs, with one copy from the device."""
    if metric is ACCURACY and targets[0].ndim == 1 and all(len(own) == len(targets[0]) for own in targets):
        right = torch.stack(list(outputs)).argmax(dim=2) == torch.stack(list(targets))  # (B, n)
        scores = right.double().mean(dim=1)
    else:
        scores = torch.stack([metric(out, own) for out, own in zip(outputs, targets, strict=True)])
    return [float(score) for score in scores.tolist()]


def _on_host(replies: Sequence[Reply]) -> list[Reply]:
    """Return the replies with mixtures and rates on the CPU; one copy brings all of them from the GPU."""
    there = [reply for reply in replies if reply.mixture.is_cuda]
    if not there:
        return list(replies)
    numbers = torch.stack([torch.stack([reply.mixture, reply.rates]) for reply in there]).cpu()  # (n, 2, K)
    here = {id(reply): replace(reply, mixture=own[0], rates=own[1]) for reply, own in zip(there, numbers, strict=True)}
    return [here.get(id(reply), reply) for reply in replies]


def _until(ticks: Iterator[Tick], turns: int) -> Iterator[Tick]:
    """Yield the ticks up to and including a number of turns."""
    for tick in ticks:
        yield tick
        turns -= tick.kind == "turn"
        if turns == 0:
            return


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
        workloads = {id(simulation.workload): simulation.workload for simulation in self.simulations}.values()
        untrained = [workload for workload in workloads if workload.start is None]
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
def counted_pretraining(trainer: Trainer, workloads: Sequence[Workload]) -> Iterator[None]:
    """Report the progress of pre-training to `record.pretraining`, as (steps so far, steps in all)."""
    report, total, turn, done = pretraining.get(), 0, Lock(), 0
    for workload in workloads:
        sizes = [
            len(workload.federation.all_samples("pretraining", k)) for k in range(workload.federation.num_clusters)
        ]
        passes, batch = workload.settings.pretraining, workload.settings.training.batch_size
        total += ceil(passes.shared_epochs * sum(sizes) / min(batch, sum(sizes)))
        total += sum(ceil(passes.separate_epochs * size / min(batch, size)) for size in sizes)

    def count(steps: int) -> None:
        nonlocal done
        with turn:  # several threads train
            done = min(total, done + steps)
            report(done, total)

    trainer.on_step = count if workloads else no_progress
    try:
        yield
    finally:
        trainer.on_step = no_progress


def _pretraining(workload: Workload) -> Steps:
    """Set `workload.start` (K, P) to what `cdfl.core.pretrain` returns, but train the clusters together."""
    shuffle, batch_size = workload.pretraining_shuffle(), workload.settings.training.batch_size
    passes = workload.settings.pretraining
    sets = [workload.federation.all_samples("pretraining", k) for k in range(workload.federation.num_clusters)]
    plan = batch_plan(sum(map(len, sets)), batch_size, passes.shared_epochs, shuffle)
    noise = workload.pretraining_noise_seed
    everything = Training(workload.federation, joined(sets), flatten(workload.model), plan, noise)
    shared = (yield Request([everything], proximal=False))[0]
    plans = [batch_plan(len(own), batch_size, passes.separate_epochs, shuffle) for own in sets]
    separate = [Training(workload.federation, own, shared, plan, noise) for own, plan in zip(sets, plans, strict=True)]
    workload.start = yield Request(separate, proximal=False)
