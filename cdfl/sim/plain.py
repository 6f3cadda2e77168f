"""Algorithm 1, one upload at a time: slow, and the reference for everything faster.

Nothing is batched, cached or overlapped here. Read it beside the paper.
"""

from collections.abc import Iterator

import torch

from cdfl.algorithms import Algorithm, Assignment, ClientView
from cdfl.core import Reply, Upload, client_update
from cdfl.data import Draw
from cdfl.data.randomness import generator
from cdfl.record import Clusters, Event, Started
from cdfl.sim.clock import TimeModel
from cdfl.sim.metrics import Job, describe, summarize
from cdfl.sim.task import Task


def simulate(task: Task, algorithm: Algorithm, time_model: TimeModel) -> Iterator[Event]:
    """Run a scenario; yields every event as it happens."""
    scenario, federation = task.scenario, task.federation
    num_clients, num_clusters = scenario.num_clients, federation.num_clusters
    yield Started(
        scenario.name,
        algorithm.name,
        federation.seed,
        num_clients,
        num_clusters,
        scenario.num_uploads,
        task.model_bytes,
    )

    # Initialization: the server pre-trains its clusters and sends their average to every client.
    events: list[Event] = []
    cluster_models = task.pretrain()  # (K, P)
    state = algorithm.initial(cluster_models, task.evaluate, task.layout.num_parameters)
    events.append(Clusters(0, task.cluster_accuracies(algorithm.cluster_models(state))))
    yield events[-1]
    draws: list[Draw] = []
    assignments: list[Assignment] = []
    updates = [0] * num_clients
    for client in range(num_clients):
        draws.append(federation.draw(client, 0))
        assignments.append(_receive(task, algorithm, state, algorithm.join(state), draws[client]))

    turns = time_model.turns(num_clients, generator(federation.seed, "turns"))
    for _ in range(scenario.num_uploads):
        time, client = next(turns)

        # Client: train from the model it received, on its own data, and upload.
        draw, assignment, update = draws[client], assignments[client], updates[client]
        inputs, targets = task.inputs(draw.train)
        plan = task.plan(draw, client, update).to(targets.device)
        batches = ((inputs[batch], targets[batch]) for batch in plan)
        local_model = client_update(task.model, assignment.personal_model, batches, task.loss, task.hyperparams)
        upload = Upload(local_model, assignment.base_epoch, client, mixture=assignment.mixture)

        # Server: estimate, move the clusters, reply.
        state, reply = algorithm.server_update(state, upload, assignment, task.evaluate)

        before, after = (task.accuracy(model, draw.test) for model in (local_model, reply.personal_model))
        job = Job(time, client, update, trained=plan.numel())
        events.append(describe(task, algorithm, job, draw, reply, before, after))
        yield events[-1]

        # The client takes the reply and new data.
        updates[client] += 1
        draws[client] = federation.draw(client, updates[client])
        assignments[client] = _receive(task, algorithm, state, reply, draws[client])

        if reply.epoch % num_clients == 0 or reply.epoch == scenario.num_uploads:
            events.append(Clusters(reply.epoch, task.cluster_accuracies(algorithm.cluster_models(state))))
            yield events[-1]

    yield summarize(events, num_clients)


def _receive(task: Task, algorithm: Algorithm, state: object, reply: Reply, draw: Draw) -> Assignment:
    view = ClientView(
        losses=lambda models: task.sample_losses(models, draw.train),
        true_mixture=torch.from_numpy(draw.true_mixture),
    )
    return algorithm.assign(state, reply, view)
