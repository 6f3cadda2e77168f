"""The fast simulation: it trains clients together. It gives the events of `cdfl.sim.reference_simulation`.

A client does not depend on other clients between a reply and its next upload. So if the next upload needs training, the
simulation trains all waiting clients together, in a large population those with the next turns. It then applies their
uploads one by one, in the order of the run. Other clients sleep: see `cdfl.sim.client_spill`.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cdfl.algorithms import Algorithm, ClientView, reads_state
from cdfl.core import NotFiniteError, Reply, Upload, personalize, reply_weights
from cdfl.core.quantization import rounded
from cdfl.run_events import Diverged, Event
from cdfl.sim.client_spill import ClientStore, Held
from cdfl.sim.engine import Engines, Training
from cdfl.sim.event_builders import UploadInfo, separated_event, shortfall, started_event, summarize
from cdfl.sim.model_losses import ClusterLosses
from cdfl.sim.population import Client, Moment, Population, Prepared, Trained
from cdfl.sim.run_router import has_router
from cdfl.sim.scenario_instance import DRAWS_KEPT, OwnView, ScenarioInstance, TurnData, client_instance
from cdfl.sim.scoring import BehindRouter, Scoring, Unscored, UnscoredClusters
from cdfl.sim.serialization import Serializer, kinds_in
from cdfl.sim.time_models import TimeModel
from cdfl.sim.upcoming_turns import Agenda
from cdfl.upload_policies import ALWAYS, Policy, decide_upload

MOST_TRAINED = 1024  # at most this many clients are trained ahead
TRAINED_BYTES = 2**30  # of their models, unless these are very large
LEAST_TRAINED = 64
SOON = 4  # data are drawn ahead for turns that come within this many times as many ticks
AWAKE_BYTES = 2**28  # of what clients were sent, in memory; the rest is in a file


class Request(NamedTuple):
    """Trainings that a simulation waits for; `proximal` is False during pre-training."""

    trainings: list[Training]
    proximal: bool


Steps = Generator["Event | Request", Tensor, None]  # send the models (B, P) for every request


@dataclass(frozen=True, eq=False)
class Bookmark:
    """The state of a run between two stacks. Resumed from here, the run gives the same result."""

    state: Any
    moment: Moment  # of the clients
    store: ClientStore  # that keeps what they hold
    ticks: int  # ticks taken so far
    attempts: int  # uploads among them, including diverged ones
    num_events: int  # events emitted so far


class Simulation:
    """One run. Iterate over `events`. `state` is the server's; `bookmark` is the last point to resume from."""

    def __init__(
        self,
        instance: ScenarioInstance,
        algorithm: Algorithm,
        time_model: TimeModel,
        engines: Engines,
        policy: Policy = ALWAYS,
    ) -> None:
        self.instance = instance
        self.client_instance = client_instance(instance, algorithm)
        self.algorithm = algorithm
        self.engines = engines
        self.policy = policy
        self.time_model = time_model
        self.bookmark: Bookmark | None = None
        self.emitted: list[Event] = []
        self.state: Any = None
        self.clients = Population()
        self.losses = ClusterLosses(instance, engines.of_clusters or engines.evaluator)
        self.scoring = Scoring(instance, algorithm, engines, self.losses)
        self.store = ClientStore(Serializer(), awake_bytes(instance.device))
        self.has_router = False  # known when the run starts
        self._newcomer: tuple[Any, Client] | None = None  # a state, and a client that joined at it
        self._ahead: dict[int, TurnData] = {}  # of the next turns of clients that were just trained
        self.most_trained = min(MOST_TRAINED, max(LEAST_TRAINED, TRAINED_BYTES // self.client_instance.model_bytes))

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
        self.clients, self.bookmark, self._newcomer, self.scoring.waiting = Population(), None, None, []

    def events(self) -> Iterator[Event]:
        """Run this simulation alone, and yield its events."""
        from cdfl.sim.simulation_group import SimulationGroup  # that module needs this one

        return (event for _, event in SimulationGroup([self]).events())

    def personal_models(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the number and the last model of each client that is there."""
        for number, client in self.clients.items():
            yield number, client.kept.load().reply.personal_model

    def steps(self) -> Steps:
        """Yield events, and requests; the caller sends the local models (B, P) of each request."""
        num_uploads, num_clients = self.instance.scenario.num_uploads, self.instance.scenario.num_clients
        if self.bookmark is None:
            yield from self._begin()
        # With `ALWAYS` every turn is an upload, so no turn after the last upload is trained for.
        agenda = Agenda(self.instance.ticks(self.time_model), num_uploads if self.policy == ALWAYS else None)
        self.bookmark = place = self.bookmark or self._mark(ticks=0, attempts=0)
        self.state, self.clients, self.store = place.state, Population(place.moment.clients()), place.store
        self.has_router = has_router(self.algorithm, self.state)
        if self.has_router:
            self.scoring.expect_router()
        agenda.skip(place.ticks)
        attempts = place.attempts
        while attempts < num_uploads and (tick := agenda.take()) is not None:
            time, number, kind = tick
            if kind == "join":
                self._join(number)
                continue
            if kind == "leave":
                del self.clients[number]
                self._ahead.pop(number, None)
                continue
            if self.clients[number].prepared is None and self.policy != ALWAYS:
                self._prepare([number])
            client = self.clients[number]
            if client.prepared is not None and not client.prepared.uploads:
                self.clients[number] = replace(client, turns=client.turns + 1, prepared=None)
                continue
            if client.prepared is None or client.prepared.trained is None:
                yield from self._emit_between_stacks(agenda.taken - 1, attempts)
                yield from self._train(number, agenda)
            attempts += 1
            self._apply(time, number)
            if len(self.scoring.waiting) >= self.scoring.most_waiting:
                yield from self._emit()
        if self.state.epoch % num_clients != 0:
            self._score_clusters()
        yield from self._emit()
        yield summarize(self.emitted, num_clients, shortfall(self.instance, self.emitted, agenda.passed))

    def _begin(self) -> Steps:
        """Initialization: start the server from the pre-trained clusters, and score them."""
        instance = self.instance
        self.emitted.append(started_event(self.client_instance, self.algorithm))
        yield self.emitted[-1]
        if instance.start is None:
            raise RuntimeError("the clusters are not pre-trained; iterate over `events`, not over `steps`")
        self.state = self.initial_state(instance.start)
        self._score_clusters()
        yield from self._emit()
        if instance.separated is None:  # runs of one seed begin with the same clusters
            instance.separated = separated_event(instance, instance.start, self.losses.evaluator.outputs)
        self.emitted.append(instance.separated)
        yield self.emitted[-1]

    def initial_state(self, start: Tensor) -> Any:
        """Return the server's state at epoch 0, and let records refer to its tensors."""
        state = self.algorithm.initial(start, self.losses.evaluate, self.instance.layout.num_parameters)
        shared = {name: value for name, value in vars(state).items() if isinstance(value, Tensor)}
        self.store.serializer = Serializer(Held, Trained, *kinds_in(state), shared=shared)
        return state

    def _mark(self, ticks: int, attempts: int) -> Bookmark:
        """Return a bookmark of this moment. It copies references only: tensors never change in place."""
        return Bookmark(self.state, self.clients.mark(), self.store, ticks, attempts, len(self.emitted))

    # -- the client

    def _join(self, number: int) -> None:
        if self._newcomer is None or self._newcomer[0] is not self.state:
            held = Held(self.algorithm.join(self.state), self._state_for_clients(), self._sent_experts())
            self._newcomer = self.state, Client(self.store.keep(held))
        self.clients[number] = self._newcomer[1]

    def _state_for_clients(self) -> Any:
        """Return the server's state if clients read it at their next turn, else None."""
        is_read = reads_state(self.algorithm) or (self.has_router and self.algorithm.models_down != "experts")
        return self.state if is_read else None

    def _prepare(self, numbers: Sequence[int]) -> None:
        """Give clients that sleep their next data, and let their policy decide."""
        for first in range(0, len(numbers), DRAWS_KEPT):
            some = numbers[first : first + DRAWS_KEPT]
            drawn = [self._ahead.pop(number) if number in self._ahead else self._turn_data(number) for number in some]
            if self.has_router:
                self.instance.routing.of(drawn)  # all together
            for number, turn_data in zip(some, drawn, strict=True):
                self._prepare_one(number, turn_data)

    def _turn_data(self, number: int, later: int = 0) -> TurnData:
        return self.instance.turn_data(number, self.clients[number].turns + later)

    def _prepare_one(self, number: int, turn_data: TurnData) -> None:
        client = self.clients[number]
        held, draw = client.kept.load(), turn_data.draw
        own_mixture = self._own_mixture(held, turn_data) if self.has_router else None
        view = ClientView(
            losses=lambda models: self.losses.on_samples(models, draw.train),
            true_mixture=torch.from_numpy(draw.true_mixture),
            experts=held.experts,
            mixture=None if own_mixture is None else lambda: own_mixture,
        )
        assignment = self.algorithm.assign(held.state, held.reply, view)
        memory, uploads = client.memory, True
        if self.policy != ALWAYS:  # that one needs no observation
            own = None
            if own_mixture is not None:
                before = held.reply.mixture if held.mixture is None else held.mixture
                own = OwnView(own_mixture, before, self.instance.routing.of([turn_data])[0].strange)
            seen = self.client_instance.observe(assignment.personal_model, draw, number, client.turns, own)
            memory, uploads = decide_upload(self.policy, memory, seen)
        prepared = Prepared(held, turn_data, assignment, uploads, own_mixture)
        self.clients[number] = replace(client, memory=memory, prepared=prepared)

    def _own_mixture(self, held: Held, turn_data: TurnData) -> Tensor:
        """Return a client's own estimate of its mixture (K,) at its next turn."""
        evidence = self.instance.routing.of([turn_data])[0]
        models = self.algorithm.cluster_models(held.state) if held.experts is None else held.experts
        train = turn_data.draw.train
        return self.instance.routing.own_mixture(
            evidence, held.reply.mixture, lambda places: self.losses.on_samples(models, train.at(places.numpy()))
        )

    # -- training

    def _train(self, number: int, agenda: Agenda) -> Steps:
        """Train a client together with others that wait."""
        others = agenda.soonest(self.most_trained - 1, self._sleeps)
        self._prepare([each for each in (number, *others) if self.clients[each].prepared is None])
        ready = sorted(each for each in (number, *others) if self._is_ready(each))
        models = yield Request([self._training(each) for each in ready], proximal=True)
        for each in ready:  # draw the next data while the GPU is still training
            if agenda.returns_within(each, SOON * self.most_trained):
                self._ahead[each] = self._turn_data(each, 1)
        if self.has_router and self._ahead:
            self.instance.routing.of([self._ahead[each] for each in ready if each in self._ahead])
        self._take_trained(ready, models)

    def _sleeps(self, number: int) -> bool:
        return number in self.clients and self.clients[number].prepared is None

    def _is_ready(self, number: int) -> bool:
        prepared = self.clients[number].prepared
        return prepared is not None and prepared.uploads

    def _training(self, number: int) -> Training:
        prepared = self.clients[number].prepared
        assert prepared is not None  # noqa: S101
        turn = prepared.turn_data
        start = prepared.assignment.personal_model
        return Training(self.instance.federation, turn.draw.train, start, turn.plan, turn.noise_seed)

    def _take_trained(self, numbers: Sequence[int], models: Tensor) -> None:
        """Store trained models with their losses until their uploads are due."""
        finite = torch.isfinite(models).all(dim=1).tolist()
        losses = self.losses.on_proxy_sets(models) if self.algorithm.uses_proxy else None
        for row, number in enumerate(numbers):
            client = self.clients[number]
            assert client.prepared is not None  # noqa: S101
            own_losses = None if losses is None else losses[row]
            trained = Trained(models[row].clone(), own_losses, finite[row])
            self.clients[number] = replace(client, prepared=replace(client.prepared, trained=trained))

    # -- the server

    def _apply(self, time: float, number: int) -> None:
        """Apply one upload. A diverged one is refused and changes nothing."""
        client = self.clients[number]
        prepared = client.prepared
        assert prepared is not None  # noqa: S101
        held, trained, assignment = prepared.held, prepared.trained, prepared.assignment
        client = replace(client, turns=client.turns + 1, prepared=None)
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
            self.state, reply = self.algorithm.server_update(self.state, upload, assignment, self.losses.evaluate)
        except NotFiniteError:
            self.scoring.waiting.append(Diverged(time, number))
            self.clients[number] = client
            return
        experts = held.experts if reply.outcome == "rejected" else self._sent_experts()  # a rejected one keeps its own
        if experts is not None:  # the client mixes them itself
            weights = reply_weights(reply.mixture, self.algorithm.settings.rates)
            reply = reply.replace(personal_model=personalize(experts, weights))
        self._wait_for_scores(time, number, prepared, trained, reply, experts)
        if self.state.epoch > earlier and self.state.epoch % self.instance.scenario.num_clients == 0:
            self._score_clusters()
        kept = self.store.keep(Held(reply, self._state_for_clients(), experts, prepared.mixture))
        self.clients[number] = replace(client, kept=kept, updates=client.updates + 1)

    def _wait_for_scores(
        self, time: float, number: int, prepared: Prepared, trained: Trained, reply: Reply, experts: Tensor | None
    ) -> None:
        turn_data, held = prepared.turn_data, prepared.held
        info = UploadInfo(time, number, self.clients[number].updates, turn_data.plan.numel(), self.state.epoch)
        models = self.algorithm.cluster_models(self.state) if experts is None else experts
        behind = None
        if prepared.mixture is not None and len(models) > 1:
            evidence = self.instance.routing.of([turn_data])[0]
            behind = BehindRouter(evidence, prepared.mixture, held.experts, models)
        before = held.reply.personal_model
        self.scoring.waiting.append(Unscored(info, turn_data.draw, before, trained.local_model, reply, behind))

    def _sent_experts(self) -> Tensor | None:
        """Return the cluster models (K, P) of a reply, as a client unpacks them; None if a reply is one model."""
        if self.algorithm.models_down != "experts":
            return None
        models = self.algorithm.cluster_models(self.state)
        return rounded(models, self.instance.layout, self.algorithm.settings.replies.expert_dtype)

    # -- events

    def _score_clusters(self) -> None:
        models = self.algorithm.cluster_models(self.state)
        self.scoring.waiting.append(UnscoredClusters(self.state.epoch, models))

    def _emit(self) -> Iterator[Event]:
        for event in self.scoring.events():
            self.emitted.append(event)
            yield event

    def _emit_between_stacks(self, ticks: int, attempts: int) -> Iterator[Event]:
        """Emit events if enough are waiting, and set a bookmark."""
        self.store.shrink()
        most = min(self.engines.scores_together, self.scoring.most_waiting)
        if not 0 < len(self.scoring.waiting) < most:
            yield from self._emit()
            self.bookmark = self._mark(ticks, attempts)


def awake_bytes(device: torch.device) -> int:
    """Return how many bytes of what clients were sent stay in memory; on a GPU, a quarter of what is free."""
    return AWAKE_BYTES if device.type != "cuda" else int(torch.cuda.mem_get_info(device)[0] // 4)
