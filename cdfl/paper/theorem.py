"""Theorem 1: its bound, its condition, and runs of CDFL in which everything that they name is written down."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from cdfl.core import Hyperparams, ServerState, Upload, initial_state, join, server_update
from cdfl.data.randomness import generator
from cdfl.paper.convex import Regression, Sample
from cdfl.sim.clock import FewActive


@dataclass(frozen=True)
class Steps:
    """Local training as the theorem has it: between H_min and H_max full gradient steps of one size."""

    fewest: int
    most: int
    size: float  # gamma
    rho: float


@dataclass(frozen=True)
class Constants:
    """What the bound is made of, in the paper's letters where these are words of nothing else."""

    steps: Steps
    v1: float
    v2: float
    lengths: tuple[float, ...]  # a_k, one a cluster: ||w_k|| <= a_k delta
    delta: float
    base_rate: float  # beta_0
    epsilon: float


def bound(constants: Constants, cluster: int, smoothness: float, fall: float, updates: float) -> dict[str, float]:
    """The four terms of the bound on E||grad F_k(v)||^2, in their printed order.

    `fall` is F_k(w_k^0) - F_k(w_k^S), `updates` S_k.
    """
    steps, lengths, count = constants.steps, constants.lengths, len(constants.lengths)
    reach = (2 * sum(lengths) + (2 * count + 1) * lengths[cluster] + count) * constants.delta
    scale = constants.epsilon * steps.fewest
    drag = smoothness / 2 + steps.rho * steps.most + steps.rho * steps.most**2 / 2
    return {
        "start": fall / (constants.base_rate * steps.size * updates * scale),
        "steps": drag * steps.size * steps.most * constants.v2 / scale,
        "gradients": constants.v1**0.5 * reach / (steps.size * scale),
        "distances": (smoothness / 2 + steps.rho) * reach**2 / (steps.size * scale),
    }


def needed_rho(distance: float, v1: float, epsilon: float) -> float:
    """The rho that the theorem asks for at a distance ||v - u||, as printed; none is enough at 0.

    >>> needed_rho(1.0, v1=1.0, epsilon=0.5)       # (2 + 1/2 + sqrt(4)) / 2
    2.25
    """
    square = distance**2
    if square == 0:
        return float("inf")
    return (2 * v1 + square / 2 + 2 * distance * math.sqrt((1 + v1) * epsilon)) / (2 * square)


@dataclass
class Trace:
    """What was seen in one run, local step by local step, wherever an upload moved a cluster."""

    gradients: list[list[tuple[int, float]]]  # of each cluster: (its updates so far, ||grad F_k(v_h)||^2)
    alignments: list[float] = field(default_factory=list)  # <grad J_k, grad J_m> / ||grad F_k||^2
    distances: list[float] = field(default_factory=list)  # ||v_h - u||
    v1: float = 0.0  # V_1: the largest ||grad f_m||^2
    v2: float = 0.0  # V_2: the largest ||grad J_m||^2
    longest: list[float] = field(default_factory=list)  # the largest ||w_k||
    falls: list[float] = field(default_factory=list)  # F_k(w_k^0) - F_k(w_k^S)
    updates: list[int] = field(default_factory=list)  # S_k


def trace_run(
    problem: Regression, steps: Steps, hyperparams: Hyperparams, num_clients: int, uploads: int, seed: int
) -> Trace:
    """CDFL with full gradients, four clients active at a time."""
    rng = generator(seed, "theorem")
    state = initial_state(_pretrained(problem, steps), problem.evaluate, problem.size)
    start = _losses(problem, state)
    count = problem.num_clusters
    trace = Trace([[] for _ in range(count)], longest=[0.0] * count, updates=[0] * count)
    replies = {client: join(state, hyperparams) for client in range(num_clients)}
    looks = dict.fromkeys(range(num_clients), 0)
    for turn in FewActive().turns(num_clients, rng):
        if state.epoch == uploads:
            break
        if turn.kind != "look":
            continue
        draw = problem.federation.draw(turn.client, looks[turn.client])
        looks[turn.client] += 1
        last = replies[turn.client]
        path, own = _train(problem, problem.take(draw.train), last.personal_model, steps, rng)
        upload = Upload(path[-1], last.epoch, turn.client)
        state, reply = server_update(state, upload, hyperparams, problem.evaluate, last.mixture)
        replies[turn.client] = reply
        _note(trace, problem, path[:-1], own, reply.rates, steps.rho)
        trace.longest = [max(old, float(w.norm())) for old, w in zip(trace.longest, state.cluster_models, strict=True)]
    trace.falls = (start - _losses(problem, state)).tolist()
    return trace


def _pretrained(problem: Regression, steps: Steps) -> Tensor:
    """Cluster models (K, P) after a few steps on the server's own data."""
    models = torch.zeros(problem.num_clusters, problem.size, dtype=torch.float64)
    for k in range(problem.num_clusters):
        own = problem.take(problem.federation.all_samples("pretraining", k))
        for _ in range(steps.most):
            models[k] -= steps.size * problem.gradients(models[k : k + 1], own)[0]
    return models


def _train(
    problem: Regression, own: Sample, personal_model: Tensor, steps: Steps, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """v_0 = u, v_1, ..., v_H (H + 1, P), and the gradients of f_m at all but the last (H, P)."""
    path, gradients = [personal_model], []
    for _ in range(int(rng.integers(steps.fewest, steps.most, endpoint=True))):
        gradients.append(problem.gradients(path[-1][None], own)[0])
        path.append(path[-1] - steps.size * (gradients[-1] + steps.rho * (path[-1] - personal_model)))
    return torch.stack(path), torch.stack(gradients)


def _note(trace: Trace, problem: Regression, path: Tensor, own: Tensor, rates: Tensor, rho: float) -> None:
    away = path - path[0]  # (H, P)
    local = own + rho * away
    trace.distances += away.norm(dim=1).tolist()
    trace.v1 = max(trace.v1, float(own.square().sum(dim=1).max()))
    trace.v2 = max(trace.v2, float(local.square().sum(dim=1).max()))
    for k in rates.nonzero().flatten().tolist():
        trace.updates[k] += 1
        gradients = problem.gradients(path, problem.clusters[k])
        squares = gradients.square().sum(dim=1)
        trace.v1 = max(trace.v1, float(squares.max()))  # a client of cluster k alone has this gradient
        trace.gradients[k] += [(trace.updates[k], square) for square in squares.tolist()]
        trace.alignments += (((gradients + rho * away) * local).sum(dim=1) / squares).tolist()


def _losses(problem: Regression, state: ServerState) -> Tensor:
    models = zip(state.cluster_models, problem.clusters, strict=True)
    return torch.stack([problem.loss(model, sample) for model, sample in models])
