"""Algorithm 1, one upload at a time: the slow reference that tests compare the fast simulation with.

Nothing is batched, cached or overlapped here. Read it beside the paper.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from cdfl.algorithms import Algorithm
from cdfl.core import NotFiniteError, Reply, Upload, client_update
from cdfl.policy import ALWAYS, Memory, Policy, decide_upload
from cdfl.record import Diverged, Event
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
from cdfl.sim.time_models import TimeModel
from cdfl.sim.workload import Workload


@dataclass
class Client:
    """What one client holds."""

    reply: Reply
    state: Any  # of the server when it replied, for algorithms that send all cluster models
    turns: int = 0  # how often fresh data arrived; selects its data
    updates: int = 0  # how often it has uploaded
    memory: Memory = ()  # of its policy


def simulate(
    workload: Workload, algorithm: Algorithm, time_model: TimeModel, policy: Policy = ALWAYS
) -> Iterator[Event]:
    """Run a scenario, and yield every event as it happens."""
    scenario, federation = workload.scenario, workload.federation
    events: list[Event] = []
    yield started_event(workload, algorithm)

    # Initialization: the server pre-trains its clusters and sends their average to every client.
    start = workload.pretrain()
    state = algorithm.initial(start, workload.evaluate, workload.layout.num_parameters)

    def scored() -> Event:
        models = algorithm.cluster_models(state)
        proxies = torch.arange(federation.num_clusters)
        losses = torch.stack([workload.evaluate(model.expand(len(proxies), -1), proxies) for model in models])
        return clusters_event(workload, state.epoch, models, workload.cluster_scores(models), losses)

    events.append(scored())
    yield events[-1]
    events.append(separated_event(workload, start))
    yield events[-1]
    clients: dict[int, Client] = {}
    attempts = 0
    ticks: Counter[str] = Counter()
    for time, client, kind in workload.ticks(time_model):
        if attempts == scenario.num_uploads:
            break
        ticks[kind] += 1
        if kind == "join":
            clients[client] = Client(algorithm.join(state), state)
            continue
        if kind == "leave":
            del clients[client]
            continue

        # Client: fresh data arrive. Upload?
        mine = clients[client]
        turn, draw = mine.turns, federation.draw(client, mine.turns)
        mine.turns += 1
        assignment = algorithm.assign(mine.state, mine.reply, workload.view(draw))
        mine.memory, upload_now = decide_upload(
            policy, mine.memory, workload.observe(assignment.personal_model, draw, client, turn)
        )
        if not upload_now:
            continue

        # Client: train from the model it received, on its own data, and upload.
        inputs, targets = workload.inputs(draw.train)
        plan = workload.plan(draw, client, turn).to(targets.device)
        batches = ((inputs[batch], targets[batch]) for batch in plan)
        with workload.noise(client, turn):
            local_model = client_update(
                workload.model, assignment.personal_model, batches, workload.loss, workload.settings.training
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
            state, reply = algorithm.server_update(state, upload, assignment, workload.evaluate)
        except NotFiniteError:
            events.append(Diverged(time, client))
            yield events[-1]
            continue

        models = mine.reply.personal_model, local_model, reply.personal_model
        scores = [Scores(*own) for own in zip(*(workload.scores(model, draw.test) for model in models), strict=True)]
        info = UploadInfo(time, client, mine.updates, plan.numel(), state.epoch)
        events.append(uploaded_event(workload, algorithm, info, draw, reply, scores))
        yield events[-1]
        if state.epoch > earlier and state.epoch % scenario.num_clients == 0:
            events.append(scored())
            yield events[-1]

        # Client: take the reply.
        mine.reply, mine.state, mine.updates = reply, state, mine.updates + 1

    if state.epoch % scenario.num_clients != 0:
        events.append(scored())
        yield events[-1]
    yield summarize(events, scenario.num_clients, shortfall(workload, events, ticks))
