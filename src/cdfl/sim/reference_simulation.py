"""Algorithm 1, one upload at a time: the slow reference that tests compare the fast simulation with.

Nothing is batched, cached or overlapped here. Read it beside the paper.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cdfl.algorithms import Algorithm
from cdfl.core import NotFiniteError, Reply, Upload, client_update, personalize, reply_weights
from cdfl.core.experts import expert_weights, likeliest
from cdfl.core.quantization import rounded
from cdfl.data import Draw
from cdfl.run_events import Diverged, Event
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
from cdfl.sim.run_router import TurnEvidence, has_router
from cdfl.sim.scenario_instance import OwnView, ScenarioInstance, client_instance
from cdfl.sim.time_models import TimeModel
from cdfl.upload_policies import ALWAYS, Memory, Policy, decide_upload


@dataclass
class Client:
    """What one client holds."""

    reply: Reply
    state: Any  # of the server when it replied, for algorithms that send all cluster models
    turns: int = 0  # how often fresh data arrived; selects its data
    updates: int = 0  # how often it has uploaded
    memory: Memory = ()  # of its policy
    experts: Tensor | None = None  # (K, P) the cluster models of its last reply, if experts are sent
    uploaded_mixture: Tensor | None = None  # (K,) its own estimate at its last upload, by the router


def simulate(
    instance: ScenarioInstance, algorithm: Algorithm, time_model: TimeModel, policy: Policy = ALWAYS
) -> Iterator[Event]:
    """Run a scenario, and yield every event as it happens."""
    scenario, federation = instance.scenario, instance.federation
    clients_have = client_instance(instance, algorithm)  # the network that they train
    events: list[Event] = []
    yield started_event(clients_have, algorithm)

    # Initialization: the server pre-trains its clusters and sends their average to every client.
    start = instance.pretrain()
    state = algorithm.initial(start, instance.evaluate, instance.layout.num_parameters)

    is_routed = has_router(algorithm, state)

    def sent_experts() -> Tensor | None:
        replies = algorithm.settings.replies
        models = algorithm.cluster_models(state)
        return rounded(models, instance.layout, replies.expert_dtype) if algorithm.models_down == "experts" else None

    def scored() -> Event:
        models = algorithm.cluster_models(state)
        proxies = torch.arange(federation.num_clusters)
        losses = torch.stack([instance.evaluate(model.expand(len(proxies), -1), proxies) for model in models])
        return clusters_event(instance, state.epoch, models, instance.cluster_scores(models), losses)

    events.append(scored())
    yield events[-1]
    events.append(separated_event(instance, start))
    yield events[-1]
    clients: dict[int, Client] = {}
    attempts = 0
    ticks: Counter[str] = Counter()
    for time, client, kind in instance.ticks(time_model):
        if attempts == scenario.num_uploads:
            break
        ticks[kind] += 1
        if kind == "join":
            clients[client] = Client(algorithm.join(state), state, experts=sent_experts())
            continue
        if kind == "leave":
            del clients[client]
            continue

        # Client: fresh data arrive. Upload?
        mine = clients[client]
        turn, draw = mine.turns, federation.draw(client, mine.turns)
        mine.turns += 1
        view, evidence, seen = instance.view(draw), None, None
        if is_routed:
            [evidence] = instance.routing.of([instance.turn_data(client, turn)])
            mixture = _own_mixture(instance, algorithm, mine, draw, evidence)
            view = replace(view, experts=mine.experts, mixture=partial(Tensor.clone, mixture))
            before = mine.reply.mixture if mine.uploaded_mixture is None else mine.uploaded_mixture
            seen = OwnView(mixture, before, evidence.strange)
        assignment = algorithm.assign(mine.state, mine.reply, view)
        mine.memory, upload_now = decide_upload(
            policy, mine.memory, clients_have.observe(assignment.personal_model, draw, client, turn, seen)
        )
        if not upload_now:
            continue

        # Client: train from the model it received, on its own data, and upload.
        inputs, targets = instance.inputs(draw.train)
        plan = instance.plan(draw, client, turn).to(targets.device)
        batches = ((inputs[batch], targets[batch]) for batch in plan)
        with instance.noise(client, turn):
            local_model = client_update(
                clients_have.model, assignment.personal_model, batches, instance.loss, instance.settings.training
            )
        attempts += 1
        upload = Upload(
            local_model,
            assignment.base_epoch,
            client,
            mixture=assignment.mixture,
            base_model=assignment.personal_model,
        )

        # Server: estimate, move the clusters, reply. A training that diverged is refused and changes nothing.
        try:
            if not bool(torch.isfinite(local_model).all()):
                raise NotFiniteError("the training has diverged")
            earlier = state.epoch
            state, reply = algorithm.server_update(state, upload, assignment, instance.evaluate)
        except NotFiniteError:
            events.append(Diverged(time, client))
            yield events[-1]
            continue

        # A rejected client is sent what it has.
        experts, own = mine.experts if reply.outcome == "rejected" else sent_experts(), None
        if experts is not None:  # the client mixes them itself
            weights = reply_weights(reply.mixture, algorithm.settings.rates)
            reply = reply.replace(personal_model=personalize(experts, weights))
        models = mine.reply.personal_model, local_model, reply.personal_model
        columns = [clients_have.scores(model, draw.test) for model in models]
        if evidence is not None:
            own = OwnEstimate(mixture, evidence.strange)
            current = algorithm.cluster_models(state) if experts is None else experts
            weights = expert_weights(evidence.test, mixture)
            columns += [_served(instance, current, draw, each) for each in (weights, likeliest(weights))]
            columns += [] if mine.experts is None else [_served(instance, mine.experts, draw, weights)]
        scores = [Scores(*each) for each in zip(*columns, strict=True)]
        info = UploadInfo(time, client, mine.updates, plan.numel(), state.epoch)
        events.append(uploaded_event(clients_have, algorithm, info, draw, reply, scores, own))
        yield events[-1]
        if state.epoch > earlier and state.epoch % scenario.num_clients == 0:
            events.append(scored())
            yield events[-1]

        # Client: take the reply.
        mine.reply, mine.state, mine.experts, mine.updates = reply, state, experts, mine.updates + 1
        mine.uploaded_mixture = mixture if is_routed else None

    if state.epoch % scenario.num_clients != 0:
        events.append(scored())
        yield events[-1]
    yield summarize(events, scenario.num_clients, shortfall(instance, events, ticks))


def _own_mixture(
    instance: ScenarioInstance, algorithm: Algorithm, client: Client, draw: Draw, evidence: TurnEvidence
) -> Tensor:
    """Return a client's own estimate of its mixture (K,) on fresh data."""
    models = algorithm.cluster_models(client.state) if client.experts is None else client.experts
    return instance.routing.own_mixture(
        evidence,
        client.reply.mixture,
        lambda places: instance.sample_losses(models, draw.train.at(places.numpy())),
    )


def _served(instance: ScenarioInstance, experts: Tensor, draw: Draw, weights: Tensor) -> list[float]:
    """Return the score, by each metric, of experts (K, P) that are weighted for each held-out sample (n, K)."""
    inputs, targets = instance.inputs(draw.test)
    outputs = torch.stack([instance.outputs(vector, inputs) for vector in experts])
    return [float(metric(instance.combine(outputs, weights), targets)) for metric in instance.metrics]
