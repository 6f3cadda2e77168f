"""Theorem 1: its bound, its condition on rho, and runs of CDFL that record every quantity in them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cdfl.core import ServerState, Settings, Upload, initial_state, join, server_update
from cdfl.data.randomness import generator
from cdfl.sim.time_models import FewActive
from experiments.harness.softmax_problem import Sample, SoftmaxProblem

TIME_MODEL = FewActive()  # with more active clients the printed damping of stale uploads stops the clusters
POINTS = 40  # in a curve


@dataclass(frozen=True)
class Steps:
    """Local training in the theorem: between H_min and H_max full gradient steps of one size."""

    fewest: int
    most: int
    size: float  # gamma
    rho: float


@dataclass(frozen=True)
class Constants:
    """The constants of the bound."""

    steps: Steps
    v1: float
    v2: float
    lengths: tuple[float, ...]  # a_k of each cluster: ||w_k|| <= a_k delta
    delta: float
    base_rate: float  # beta_0
    epsilon: float


def bound(constants: Constants, cluster: int, smoothness: float, fall: float, updates: float) -> dict[str, float]:
    """Return the four terms of the bound on E||grad F_k(v)||^2, in their printed order.

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
    """Return the rho that the theorem needs at a distance ||v - u||, as printed; infinite at 0.

    >>> needed_rho(1.0, v1=1.0, epsilon=0.5)       # (2 + 1/2 + sqrt(4)) / 2
    2.25
    """
    square = distance**2
    if square == 0:
        return float("inf")
    return (2 * v1 + square / 2 + 2 * distance * math.sqrt((1 + v1) * epsilon)) / (2 * square)


@dataclass
class Trace:
    """The local steps of one run, for uploads that moved a cluster."""

    gradients: list[list[tuple[int, float]]]  # of each cluster: (its updates so far, ||grad F_k(v_h)||^2)
    alignments: list[float] = field(default_factory=list)  # <grad J_k, grad J_m> / ||grad F_k||^2
    distances: list[float] = field(default_factory=list)  # ||v_h - u||
    v1: float = 0.0  # V_1: the largest ||grad f_m||^2
    v2: float = 0.0  # V_2: the largest ||grad J_m||^2
    longest: list[float] = field(default_factory=list)  # the largest ||w_k||
    falls: list[float] = field(default_factory=list)  # F_k(w_k^0) - F_k(w_k^S)
    updates: list[int] = field(default_factory=list)  # S_k


def trace_run(
    problem: SoftmaxProblem, steps: Steps, settings: Settings, num_clients: int, uploads: int, seed: int
) -> Trace:
    """Run CDFL with full gradients and `TIME_MODEL`, and record what the theorem is about."""
    rng = generator(seed, "theorem")
    state = initial_state(_pretrained(problem, steps), problem.evaluate, problem.size)
    start = _losses(problem, state)
    count = problem.num_clusters
    trace = Trace([[] for _ in range(count)], longest=[0.0] * count, updates=[0] * count)
    replies = {client: join(state, settings) for client in range(num_clients)}
    turns = dict.fromkeys(range(num_clients), 0)
    for tick in TIME_MODEL.ticks(num_clients, rng):
        if state.epoch == uploads:
            break
        if tick.kind != "turn":
            continue
        draw = problem.federation.draw(tick.client, turns[tick.client])
        turns[tick.client] += 1
        last = replies[tick.client]
        path, own = _train(problem, problem.take(draw.train), last.personal_model, steps, rng)
        upload = Upload(path[-1], last.epoch, tick.client)
        state, reply = server_update(state, upload, settings, problem.evaluate, last.client)
        replies[tick.client] = reply
        _note(trace, problem, path[:-1], own, reply.rates, steps.rho)
        trace.longest = [max(old, float(w.norm())) for old, w in zip(trace.longest, state.cluster_models, strict=True)]
    trace.falls = (start - _losses(problem, state)).tolist()
    return trace


def _pretrained(problem: SoftmaxProblem, steps: Steps) -> Tensor:
    """Return cluster models (K, P) after a few steps on the pre-training data."""
    models = torch.zeros(problem.num_clusters, problem.size, dtype=torch.float64)
    for k in range(problem.num_clusters):
        own = problem.take(problem.federation.all_samples("pretraining", k))
        for _ in range(steps.most):
            models[k] -= steps.size * problem.gradients(models[k : k + 1], own)[0]
    return models


def _train(
    problem: SoftmaxProblem, own: Sample, personal_model: Tensor, steps: Steps, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return v_0 = u, v_1, ..., v_H (H + 1, P), and the gradients of f_m at all but the last (H, P)."""
    path, gradients = [personal_model], []
    for _ in range(int(rng.integers(steps.fewest, steps.most, endpoint=True))):
        gradients.append(problem.gradients(path[-1][None], own)[0])
        path.append(path[-1] - steps.size * (gradients[-1] + steps.rho * (path[-1] - personal_model)))
    return torch.stack(path), torch.stack(gradients)


def _note(trace: Trace, problem: SoftmaxProblem, path: Tensor, own: Tensor, rates: Tensor, rho: float) -> None:
    away = path - path[0]  # (H, P)
    local = own + rho * away
    trace.distances += away.norm(dim=1).tolist()
    trace.v1 = max(trace.v1, float(own.square().sum(dim=1).max()))
    trace.v2 = max(trace.v2, float(local.square().sum(dim=1).max()))
    for k in rates.nonzero().flatten().tolist():
        trace.updates[k] += 1
        gradients = problem.gradients(path, problem.clusters[k])
        squares = gradients.square().sum(dim=1)
        trace.v1 = max(trace.v1, float(squares.max()))  # the gradient of a client with data of cluster k only
        trace.gradients[k] += [(trace.updates[k], square) for square in squares.tolist()]
        trace.alignments += (((gradients + rho * away) * local).sum(dim=1) / squares).tolist()


def _losses(problem: SoftmaxProblem, state: ServerState) -> Tensor:
    models = zip(state.cluster_models, problem.clusters, strict=True)
    return torch.stack([problem.loss(model, sample) for model, sample in models])


def summarize(
    problem: SoftmaxProblem, optima: Tensor, steps: Steps, traces: Sequence[Trace], base_rate: float, epsilon: float
) -> dict[str, Any]:
    """Return the constants that several runs show, the bound, and what it bounds; `optima` is (K, P)."""
    delta = float(torch.cdist(optima, optima).max())
    longest = [max(trace.longest[k] for trace in traces) for k in range(problem.num_clusters)]
    lengths = tuple(max(seen, float(best.norm())) / delta for seen, best in zip(longest, optima, strict=True))
    v1, v2 = max(trace.v1 for trace in traces), max(trace.v2 for trace in traces)
    constants = Constants(steps, v1, v2, lengths, delta, base_rate, epsilon)
    distances = np.array([distance for trace in traces for distance in trace.distances])
    alignments = np.array([alignment for trace in traces for alignment in trace.alignments])
    middle, largest = float(np.median(distances[distances > 0])), float(distances.max())
    return {
        "v1": v1,
        "v2": v2,
        "delta": delta,
        "lengths": lengths,
        "step": steps.size,
        "clusters": [_cluster(k, traces, constants, problem.smoothness(k)) for k in range(problem.num_clusters)],
        "largest_distance": largest,
        "limit": v1**0.5 / steps.rho,  # no distance is larger
        "needed_at_largest": needed_rho(largest, v1, epsilon),
        "needed_at_median": needed_rho(middle, v1, epsilon),
        "at_start": float((distances == 0).mean()),  # share of steps at v = u, where no rho is enough
        "aligned": float((alignments >= 0).mean()),
        "least_alignment": float(alignments.min()),
    }


def _cluster(k: int, traces: Sequence[Trace], constants: Constants, smoothness: float) -> dict[str, Any]:
    """Return the measurements of one cluster, and its bound."""
    updates = float(np.mean([trace.updates[k] for trace in traces]))
    falls = [trace.falls[k] for trace in traces]
    seen = np.array([pair for trace in traces for pair in trace.gradients[k]])
    places = np.digitize(seen[:, 0], np.linspace(0, seen[:, 0].max(), POINTS + 1)[1:-1], right=True)
    curve = [float(seen[places == place, 1].mean()) for place in range(POINTS) if (places == place).any()]
    return {
        "smoothness": smoothness,
        "updates": updates,
        "falls": falls,
        "measured": float(seen[:, 1].mean()),
        "terms": bound(constants, k, smoothness, float(np.mean(falls)), updates),
        "curve": [float(f"{value:.4g}") for value in curve],
    }


@dataclass(frozen=True)
class Measured:
    """What `summarize` returned for one rho, with means over clusters."""

    rho: float
    stored: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.stored[name]

    def mean(self, name: str) -> float:
        """Return the mean of one number over clusters."""
        return float(np.mean([cluster[name] for cluster in self["clusters"]]))

    @property
    def terms(self) -> dict[str, float]:
        """The four terms of the bound."""
        clusters = [cluster["terms"] for cluster in self["clusters"]]
        return {name: float(np.mean([terms[name] for terms in clusters])) for name in clusters[0]}

    @property
    def bound(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())

    @property
    def excess(self) -> float:
        """The bound as a multiple of V_1."""
        return self.bound / float(self["v1"])

    @property
    def curve(self) -> np.ndarray:
        """The squared gradient over the updates of a cluster."""
        curves = [cluster["curve"] for cluster in self["clusters"]]
        length = min(map(len, curves))
        mean: np.ndarray = np.mean([curve[:length] for curve in curves], axis=0)
        return mean

    @property
    def ends(self) -> tuple[float, float]:
        """The means of the first and of the last quarter of the curve."""
        curve = self.curve
        quarter = max(1, len(curve) // 4)
        return float(curve[:quarter].mean()), float(curve[-quarter:].mean())

    @property
    def falls(self) -> list[float]:
        """F_k(w_k^0) - F_k(w_k^S) of every cluster and seed."""
        return [fall for cluster in self["clusters"] for fall in cluster["falls"]]

    @property
    def fall(self) -> float:
        """The mean of the falls."""
        return float(np.mean(self.falls))
