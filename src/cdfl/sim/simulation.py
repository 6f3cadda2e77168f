"""The fast simulation: it trains clients together. It gives the events of `cdfl.sim.reference_simulation`.

A client does not depend on other clients between a reply and its next upload. So if the next upload needs training, the
simulation trains all waiting clients together. It then applies their uploads one by one, in the order of the run.
Scores do not influence the run; the simulation computes them in batches, before it emits their events.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cdfl.algorithms import Algorithm, Assignment, ClientView
from cdfl.core import NotFiniteError, Reply, Upload, flatten, personalize, reply_weights
from cdfl.core.batches import batch_plan
from cdfl.core.experts import rounded
from cdfl.core.losses import each_loss, row_losses
from cdfl.data import Draw, Samples
from cdfl.metrics import ACCURACY, Metric
from cdfl.policy import ALWAYS, Memory, Policy, decide_upload
from cdfl.record import Diverged, Event
from cdfl.sim.engine import Engines, Training, fetch_all, joined
from cdfl.sim.event_builders import (
    OwnEstimate,
    Scores,
    UploadInfo,
    clusters_event,
    separated_event,
    shortfall,
    started_event,
    summarize,
    uploaded_event,
)
from cdfl.sim.routing import TurnEvidence, has_router, served
from cdfl.sim.time_models import Tick, TimeModel
from cdfl.sim.workload import DRAWS_KEPT, TurnData, Workload, client_workload

MOST_WAITING = 256  # at most this many uploads wait for their scores
WAITING_BYTES = 2**33  # of cluster models that wait with them
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
    experts: Tensor | None = None  # (K, P) the cluster models of its last reply, as they came
    own_mixture: Tensor | None = None  # (K,) its own estimate for its next turn, by the router


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
    behind: "_BehindRouter | None" = None


@dataclass(frozen=True, eq=False)
class _BehindRouter:
    """What is scored of an upload if there is a router."""

    evidence: TurnEvidence
    mixture: Tensor  # (K,) the client's own estimate
    held: Tensor | None  # (K, P) the experts before training, if experts are sent
    experts: Tensor  # (K, P) after the reply


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
        self.client_workload = client_workload(workload, algorithm)
        self.algorithm = algorithm
        self.engines = engines
        self.policy = policy
        self.time_model = time_model
        self.bookmark: Bookmark | None = None
        self.emitted: list[Event] = []
        self.state: Any = None
        self.clients: dict[int, Client] = {}
        self._waiting: list[_Unscored | Diverged | tuple[int, Tensor]] = []
        self.has_router = False  # known when the run starts
        self._most_waiting = MOST_WAITING
        self._of_clusters = engines.of_clusters or engines.evaluator

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
        self.has_router = has_router(self.algorithm, self.state)
        if self.has_router:  # every waiting upload holds up to 2 K models
            held = 2 * self.workload.federation.num_clusters * self.workload.model_bytes
            self._most_waiting = max(1, min(MOST_WAITING, WAITING_BYTES // held))

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
                if not 0 < len(self._waiting) < min(self.engines.scores_together, self._most_waiting):
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
            if len(self._waiting) >= self._most_waiting:
                yield from self._emit()
        if self.state.epoch % scenario.num_clients != 0:
            self._score_clusters()
        yield from self._emit()
        yield summarize(self.emitted, scenario.num_clients, shortfall(self.workload, self.emitted, passed))

    def _begin(self) -> Steps:
        """Initialization: start the server from the pre-trained clusters, and score them."""
        workload = self.workload
        self.emitted.append(started_event(self.client_workload, self.algorithm))
        yield self.emitted[-1]
        if workload.start is None:
            raise RuntimeError("the clusters are not pre-trained; iterate over `events`, not over `steps`")
        self.state = self.algorithm.initial(workload.start, self.evaluate, workload.layout.num_parameters)
        self._score_clusters()
        yield from self._emit()
        if workload.separated is None:  # runs of one seed begin with the same clusters
            workload.separated = separated_event(workload, workload.start, self._of_clusters.outputs)
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
        if self.has_router and not self.clients:  # all that join at the start are asked about together
            first = range(min(self.workload.scenario.num_clients, DRAWS_KEPT))
            self.workload.routing.of([self.workload.turn_data(other, 0) for other in first])
        self.clients[number] = Client(reply, self.state, drawn, assignment, ahead=drawn, experts=self._sent_experts())
        self._prepare(number)

    def _prepare(self, number: int) -> None:
        """Give a client its reply and its next data, and let its policy decide."""
        client = self.clients[number]
        client.turn_data = client.ahead or self.workload.turn_data(number, client.turns)
        client.ahead, client.trained, client.own_mixture = None, None, None
        draw = client.turn_data.draw
        view = ClientView(
            losses=lambda models: self._sample_losses(models, draw.train),
            true_mixture=torch.from_numpy(draw.true_mixture),
            experts=client.experts,
            mixture=(lambda: self._own_mixture(client)) if self.has_router else None,
        )
        client.assignment = self.algorithm.assign(client.state, client.reply, view)
        if self.has_router:
            self._own_mixture(client)  # while it has its cluster models
        if self.policy == ALWAYS:  # needs no observation
            client.uploads = True
            return
        seen = self.client_workload.observe(client.assignment.personal_model, draw, number, client.turns)
        client.memory, client.uploads = decide_upload(self.policy, client.memory, seen)

    def _training(self, number: int) -> Training:
        client = self.clients[number]
        turn = client.turn_data
        start = client.assignment.personal_model
        return Training(self.workload.federation, turn.draw.train, start, turn.plan, turn.noise_seed)

    def _take_trained(self, numbers: Sequence[int], models: Tensor) -> None:
        """Store trained models with their losses until their uploads are due."""
        for number in numbers:  # draw the next data while the GPU is still training
            self.clients[number].ahead = self.workload.turn_data(number, self.clients[number].turns + 1)
        if self.has_router:
            self.workload.routing.of([ahead for number in numbers if (ahead := self.clients[number].ahead)])
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
            self.state, reply = self.algorithm.server_update(self.state, upload, assignment, self.evaluate)
        except NotFiniteError:
            self._waiting.append(Diverged(time, number))
            return
        info = UploadInfo(time, number, client.updates, turn_data.plan.numel())
        experts, behind = self._sent_experts(), None
        if experts is not None:  # the client mixes them itself
            weights = reply_weights(reply.mixture, self.algorithm.settings.rates)
            reply = reply.replace(personal_model=personalize(experts, weights))
        models = self.algorithm.cluster_models(self.state) if experts is None else experts
        if self.has_router and len(models) > 1 and client.own_mixture is not None:
            evidence = self.workload.routing.of([turn_data])[0]
            behind = _BehindRouter(evidence, client.own_mixture, client.experts, models)
        held = client.reply.personal_model
        self._waiting.append(_Unscored(info, turn_data.draw, held, trained.local_model, reply, behind))
        client.experts = experts
        if reply.epoch % self.workload.scenario.num_clients == 0:
            self._score_clusters()
        client.reply, client.state, client.updates = reply, self.state, client.updates + 1

    def _sent_experts(self) -> Tensor | None:
        """Return the cluster models (K, P) of a reply, as a client unpacks them; None if a reply is one model."""
        if self.algorithm.models_down != "experts":
            return None
        models = self.algorithm.cluster_models(self.state)
        return rounded(models, self.workload.layout, self.algorithm.settings.replies.expert_dtype)

    def _own_mixture(self, client: Client) -> Tensor:
        """Return a client's own estimate of its mixture (K,) at its next turn."""
        if client.own_mixture is None:
            evidence = self.workload.routing.of([client.turn_data])[0]
            models = self.algorithm.cluster_models(client.state) if client.experts is None else client.experts
            train = client.turn_data.draw.train
            client.own_mixture = self.workload.routing.own_mixture(
                evidence, client.reply.mixture, lambda places: self._sample_losses(models, train.at(places.numpy()))
            )
        return client.own_mixture

    def evaluate(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the proxy set of its cluster (n,)."""
        return self._of_clusters.evaluate(models, clusters, self.workload.proxy_sets)

    def _proxy_losses(self, models: Tensor) -> Tensor:
        """Return the losses (B, K) of many models (B, P) on all proxy sets."""
        sets, loss = self.workload.proxy_sets, self.workload.loss
        if loss is not cross_entropy or sets[0][1].ndim > 1:
            return torch.stack([self._losses_on(models, *own) for own in sets], dim=1).double().cpu()
        sizes = [len(targets) for _, targets in sets]
        outputs = self._of_clusters.outputs(models, torch.cat([inputs for inputs, _ in sets]))
        logits = torch.stack(outputs)  # (B, n, classes)
        targets = torch.cat([own for _, own in sets]).expand(len(logits), -1)  # (B, n)
        losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
        return torch.stack([own.mean(dim=1) for own in losses.split(sizes, dim=1)], dim=1).double().cpu()

    def _losses_on(self, models: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss (B,) of each model (B, P) on common samples."""
        together = max(1, NUMBERS // (len(inputs) * self.workload.output_size))
        found = []
        for some in models.split(together):
            outputs = torch.stack(self._of_clusters.outputs(some, inputs))  # (B, n, ...)
            found.append(row_losses(self.workload.loss, outputs, targets.expand(len(some), *targets.shape)))
        return torch.cat(found)

    def _sample_losses(self, models: Tensor, samples: Samples) -> Tensor:
        """Return the loss of every model (K, P) on every sample, (n, K)."""
        inputs, targets = self.workload.inputs(samples)
        outputs = self._of_clusters.outputs(models, inputs)
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
                behind = item.behind
                own = None if behind is None else OwnEstimate(behind.mixture, behind.evidence.strange)
                event = uploaded_event(
                    self.client_workload, self.algorithm, item.info, item.draw, next(replies), next(scores), own
                )
            elif isinstance(item, Diverged):
                event = item
            else:
                event = clusters_event(self.workload, item[0], self._cluster_scores(item[1]))
            self.emitted.append(event)
            yield event

    def _scores(self, answered: Sequence[_Unscored]) -> list[list[Scores]]:
        """Return the scores of each client on its held-out samples, by each metric."""
        per_upload = 3 + (2 * self.workload.federation.num_clusters if self.has_router else 0)
        together = max(1, NUMBERS // (per_upload * len(answered[0].draw.test) * self.workload.output_size))
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
        count = len(answered)
        if answered[0].behind is not None:
            outputs = outputs + self._served(answered, [inputs for inputs, _ in ready])
        targets = [targets for _, targets in ready] * (len(outputs) // count)
        found = [_score(metric, outputs, targets) for metric in self.workload.metrics]
        return [[Scores(*own[place::count]) for own in found] for place in range(count)]

    def _served(self, answered: Sequence[_Unscored], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return what clients predict with cluster models behind the router: after, by one expert, before training."""
        behind = [item.behind for item in answered if item.behind is not None]
        evidence, mixtures = [each.evidence.test for each in behind], [each.mixture for each in behind]

        def outputs(models: Sequence[Tensor]) -> list[Tensor]:
            copies = [own for own, experts in zip(inputs, models, strict=True) for _ in experts]
            return self._of_clusters.outputs(torch.cat(list(models)), copies)

        after = outputs([each.experts for each in behind])
        found = served(self.workload.combine, after, evidence, mixtures)
        found += served(self.workload.combine, after, evidence, mixtures, one_expert=True)
        held = [each.held for each in behind if each.held is not None]
        return found + (served(self.workload.combine, outputs(held), evidence, mixtures) if held else [])

    def _cluster_scores(self, models: Tensor) -> list[list[float]]:
        """Return the score of each cluster's model on its test set, by each metric."""
        sets = self.workload.test_sets
        outputs = self._of_clusters.outputs(models.expand(len(sets), -1), [inputs for inputs, _ in sets])
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
        untrained = [_pretraining(workload) for workload in workloads if workload.start is None]
        for _ in self._advance(dict(enumerate(untrained))):
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
