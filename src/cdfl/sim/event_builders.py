"""Turn a run's results into events: started, each upload, and the summary."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite, log
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cdfl.algorithms import Algorithm
from cdfl.core import Reply
from cdfl.data import Draw
from cdfl.problems.problem_instance import Outputs
from cdfl.run_events import Clusters, Diverged, Event, Finished, Routed, Separated, Started, Uploaded, only
from cdfl.sim.scenario_instance import TURNS_PER_UPLOAD, ScenarioInstance
from cdfl.wire.experts import experts_size

SMOOTHING = 1e-4


class Scores(NamedTuple):
    """Scores on a client's held-out data: of the model it held, the one it uploaded, and the reply.

    With a router, also of the cluster models behind it.
    """

    held: float
    before: float
    after: float
    routed: float | None = None  # after the reply
    one_expert: float | None = None  # the same, with the likeliest expert of each input alone
    routed_held: float | None = None  # before training


class OwnEstimate(NamedTuple):
    """What the router tells a client about its data."""

    mixture: Tensor  # (K,)
    strange: float  # share of inputs that fit no cluster


class UploadInfo(NamedTuple):
    """When, which client, which of its uploads, how many samples it trained on, and the server's epoch after it."""

    time: float
    client: int
    update: int
    trained: int
    epoch: int


def divergence(true_mixture: Sequence[float], mixture: Sequence[float]) -> float:
    """Return KL(true || estimate), with the estimate smoothed by 1e-4 and renormalised so that no share is zero.

    >>> divergence([0.5, 0.5], [0.5, 0.5])
    0.0
    >>> round(divergence([1.0, 0.0], [0.5, 0.5]), 4)
    0.6931
    """
    total = sum(mixture) + SMOOTHING * len(mixture)
    smoothed = [(share + SMOOTHING) / total for share in mixture]
    return max(0.0, sum(p * log(p / q) for p, q in zip(true_mixture, smoothed, strict=True) if p > 0))


def started_event(instance: ScenarioInstance, algorithm: Algorithm) -> Started:
    """Return the first event of a run."""
    scenario = instance.scenario
    return Started(
        scenario=scenario.name,
        algorithm=algorithm.name,
        seed=instance.seed,
        num_clients=scenario.num_clients,
        num_clusters=instance.federation.num_clusters,
        num_uploads=scenario.num_uploads,
        model_bytes=instance.model_bytes,
        metrics=[metric.to_jsonable() for metric in instance.metrics],
        clusters=instance.federation.names,
        notes="\n".join(instance.federation.notes),
    )


def uploaded_event(
    instance: ScenarioInstance,
    algorithm: Algorithm,
    info: UploadInfo,
    draw: Draw,
    reply: Reply,
    scores: Sequence[Scores],
    own: OwnEstimate | None = None,
) -> Uploaded:
    """Return the event of one upload, with its costs; `scores` has one entry for each metric."""
    main, *others = scores
    num_clusters = instance.federation.num_clusters
    down = bytes_down(instance, algorithm, is_first=info.update == 0)
    # A client that receives all cluster models evaluates each on its data.
    tried = num_clusters * len(draw.train) if algorithm.models_down == "clusters" else 0
    asked = len(draw.train) * instance.routing.flops if algorithm.models_down == "experts" and own else 0
    server_passes = 0
    if algorithm.uses_proxy and reply.outcome != "deprecated":
        sizes = [len(targets) for _, targets in instance.proxy_sets]
        moved = [size for size, rate in zip(sizes, reply.rates.tolist(), strict=True) if rate > 0]
        server_passes = sum(sizes) + sum(moved)
    true_mixture = draw.true_mixture.tolist()
    mixture = reply.mixture.tolist() if algorithm.estimates else None
    return Uploaded(
        epoch=info.epoch,
        time=info.time,
        client=info.client,
        update=info.update,
        samples=len(draw.train),
        staleness=reply.staleness,
        outcome=reply.outcome,
        held=main.held,
        before=main.before,
        after=main.after,
        **_served(algorithm, main),
        true_mixture=true_mixture,
        mixture=mixture,
        divergence=None if mixture is None else divergence(true_mixture, mixture),
        rates=reply.rates.tolist(),
        bytes_up=0 if algorithm.models_down == "none" else instance.model_bytes,
        bytes_down=down,
        client_flops=info.trained * instance.flops.training + tried * instance.flops.forward + asked,
        server_flops=server_passes * instance.flops.forward,
        trained=info.trained,
        more={
            metric.name: {"held": each.held, "before": each.before, "after": each.after, **_served(algorithm, each)}
            for metric, each in zip(instance.metrics[1:], others, strict=True)
        },
        routed={} if own is None else asdict(_routed(main, own, true_mixture)),
    )


def bytes_down(instance: ScenarioInstance, algorithm: Algorithm, *, is_first: bool) -> int:
    """Return the bytes of a reply's body. The router comes once, with the first reply to a client."""
    num_clusters = instance.federation.num_clusters
    if algorithm.models_down == "experts":
        num_models = num_clusters if algorithm.estimates else 1  # one model for all needs no router
        experts = experts_size(instance.layout, num_models, algorithm.settings.replies.expert_dtype)
        return experts + (instance.routing.num_bytes if is_first and num_models > 1 else 0)
    return {"one": 1, "clusters": num_clusters, "none": 0}[algorithm.models_down] * instance.model_bytes


def _served(algorithm: Algorithm, scores: Scores) -> dict[str, float]:
    """Return the scores of what a client predicts with, after the reply and before training."""
    if algorithm.models_down == "experts" and scores.routed is not None and scores.routed_held is not None:
        return {"served": scores.routed, "served_held": scores.routed_held}
    return {"served": scores.after, "served_held": scores.held}


def _routed(scores: Scores, own: OwnEstimate, true_mixture: list[float]) -> Routed:
    assert scores.routed is not None and scores.one_expert is not None  # noqa: S101, PT018  there is a router
    mixture = own.mixture.tolist()
    main = max(range(len(true_mixture)), key=true_mixture.__getitem__)
    return Routed(scores.routed, scores.one_expert, divergence(true_mixture, mixture), mixture[main], own.strange)


def clusters_event(
    instance: ScenarioInstance, epoch: int, models: Tensor, scores: Sequence[Sequence[float]], losses: Tensor
) -> Clusters:
    """Return the event of the cluster models (K, P) or (1, P): their scores by each metric, and proxy losses (·, K)."""
    main, *others = map(list, scores)
    trained = models[:, : instance.layout.num_parameters].expand(len(main), -1)
    return Clusters(
        epoch,
        main,
        {metric.name: own for metric, own in zip(instance.metrics[1:], others, strict=True)},
        losses=[[loss if isfinite(loss) else None for loss in row] for row in losses.expand(len(main), -1).tolist()],
        distances=torch.cdist(trained, trained, compute_mode="donot_use_mm_for_euclid_dist").double().tolist(),
    )


def separated_event(instance: ScenarioInstance, models: Tensor, outputs: Outputs | None = None) -> Separated:
    """Return whether the clusters (K, P) that a run begins with can be told apart."""
    found = instance.separation(models, outputs)
    return Separated(found.losses.tolist(), instance.warnings(found))


def shortfall(instance: ScenarioInstance, events: Iterable[Event], ticks: Counter[str]) -> str:
    """Return why a run made fewer uploads than planned, given its ticks of each kind; "" if it made all."""
    events, asked = list(events), instance.scenario.num_uploads
    made, diverged = len(only(events, Uploaded)), len(only(events, Diverged))
    if made == asked:
        return ""
    reasons = [f"trainings that diverged and were refused: {diverged}"] if diverged else []
    if made + diverged < asked and ticks.total() == instance.most_ticks:
        times = f"uploaded {made + diverged} times" if made + diverged else "never uploaded"
        reasons.append(
            f"the policy {times} in {ticks['turn']} turns, and a run ends after about "
            f"{TURNS_PER_UPLOAD} turns for each planned upload"
        )
    elif made + diverged < asked:
        gone = ticks["leave"] == ticks["join"]
        reasons.append("all clients have left" if gone else "the time model had no more ticks")
    return f"{made} of {asked} uploads were made: {'; '.join(reasons)}"


def summarize(events: Iterable[Event], num_clients: int, shortfall: str = "") -> Finished:
    """Summarize a run in a few numbers, from its events.

    Client scores and divergence are means over the last upload of every client that made one; the cluster score is the
    mean over clusters at the end.
    """
    events = list(events)
    uploads = only(events, Uploaded)
    last = list({event.client: event for event in uploads}.values())
    clusters = only(events, Clusters)
    divergences = [event.divergence for event in last if event.divergence is not None]
    return Finished(
        uploads=len(uploads),
        **_means(vars(event) for event in last),
        cluster=fmean(clusters[-1].scores) if clusters else 0.0,
        divergence=_mean(divergences),
        deprecated_share=_mean(float(event.outcome == "deprecated") for event in uploads) or 0.0,
        rejected_share=_mean(float(event.outcome == "rejected") for event in uploads) or 0.0,
        diverged=len(only(events, Diverged)),
        staleness=staleness_histogram((event.staleness for event in uploads), width=max(1, num_clients // 8)),
        bytes_up=sum(event.bytes_up for event in uploads),
        bytes_down=sum(event.bytes_down for event in uploads),
        client_flops=sum(event.client_flops for event in uploads),
        server_flops=sum(event.server_flops for event in uploads),
        trained=sum(event.trained for event in uploads),
        shortfall=shortfall,
        more={
            name: {
                **_means(event.more[name] for event in last),
                "cluster": fmean(scores),
            }
            for name, scores in (clusters[-1].more if clusters else {}).items()
        },
        routed={name: _mean(event.routed[name] for event in last) for name in (last[0].routed if last else {})},
    )


def staleness_histogram(staleness: Iterable[int], width: int) -> dict[str, int]:
    """Count uploads by their staleness, in bins of equal width.

    >>> staleness_histogram([1, 2, 2, 9], width=4)
    {'0-3': 3, '8-11': 1}
    """
    bins = Counter(value // width for value in staleness)
    return {f"{number * width}-{number * width + width - 1}": bins[number] for number in sorted(bins)}


def _means(scores: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    scores = list(scores)
    return {name: _mean(each[name] for each in scores) for name in ("held", "before", "after", "served", "served_held")}


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return fmean(values) if values else None
