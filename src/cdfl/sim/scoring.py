"""Scores of uploads and clusters, which do not influence a run: they are computed in batches, before their events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cdfl.algorithms import Algorithm
from cdfl.core import Reply
from cdfl.data import Draw
from cdfl.metrics import ACCURACY, Metric
from cdfl.run_events import Diverged, Event
from cdfl.sim.engine import Engines, fetch_all
from cdfl.sim.event_builders import OwnEstimate, Scores, UploadInfo, clusters_event, uploaded_event
from cdfl.sim.model_losses import NUMBERS, ClusterLosses
from cdfl.sim.run_router import TurnEvidence, served
from cdfl.sim.scenario_instance import ScenarioInstance, client_instance

MOST_WAITING = 256  # at most this many uploads wait for their scores
WAITING_BYTES = 2**33  # of cluster models that wait with them


@dataclass(frozen=True, eq=False)
class Unscored:
    """An answered upload that has no scores yet."""

    info: UploadInfo
    draw: Draw
    held: Tensor  # (P,) what its client had before training
    local_model: Tensor
    reply: Reply
    behind: "BehindRouter | None" = None


@dataclass(frozen=True, eq=False)
class BehindRouter:
    """What is scored of an upload if there is a router."""

    evidence: TurnEvidence
    mixture: Tensor  # (K,) the client's own estimate
    held: Tensor | None  # (K, P) the experts before training, if experts are sent
    experts: Tensor  # (K, P) after the reply


@dataclass(frozen=True, eq=False)
class UnscoredClusters:
    """The cluster models of an epoch, (K, P) or (1, P), without scores."""

    epoch: int
    models: Tensor


class Scoring:
    """Collects what has no scores yet, and makes the events of it."""

    def __init__(
        self, instance: ScenarioInstance, algorithm: Algorithm, engines: Engines, losses: ClusterLosses
    ) -> None:
        self.instance = instance
        self.client_instance = client_instance(instance, algorithm)
        self.algorithm = algorithm
        self.engines = engines
        self.losses = losses
        self.waiting: list[Unscored | Diverged | UnscoredClusters] = []
        self.most_waiting = MOST_WAITING

    def expect_router(self) -> None:
        """Let fewer uploads wait: with a router each holds up to 2 K models."""
        held = 2 * self.instance.federation.num_clusters * self.instance.model_bytes
        self.most_waiting = max(1, min(MOST_WAITING, WAITING_BYTES // held))

    def events(self) -> Iterator[Event]:
        """Score what is waiting, and yield its events in order."""
        waiting, self.waiting = self.waiting, []
        answered = [item for item in waiting if isinstance(item, Unscored)]
        scores = iter(self._scores(answered) if answered else ())
        replies = iter(_on_host([item.reply for item in answered]))
        for item in waiting:
            if isinstance(item, Unscored):
                behind = item.behind
                own = None if behind is None else OwnEstimate(behind.mixture, behind.evidence.strange)
                yield uploaded_event(
                    self.client_instance, self.algorithm, item.info, item.draw, next(replies), next(scores), own
                )
            elif isinstance(item, Diverged):
                yield item
            else:
                scored, losses = self._cluster_scores(item.models), self.losses.on_proxy_sets(item.models)
                yield clusters_event(self.instance, item.epoch, item.models, scored, losses)

    def _scores(self, answered: Sequence[Unscored]) -> list[list[Scores]]:
        """Return the scores of each client on its held-out samples, by each metric."""
        per_upload = 3 + (2 * self.instance.federation.num_clusters if answered[0].behind is not None else 0)
        together = max(1, NUMBERS // (per_upload * len(answered[0].draw.test) * self.instance.output_size))
        return [
            scores
            for first in range(0, len(answered), together)
            for scores in self._scores_of(answered[first : first + together])
        ]

    def _scores_of(self, answered: Sequence[Unscored]) -> list[list[Scores]]:
        ready = fetch_all([(self.instance.federation, item.draw.test) for item in answered], self.instance.dtype)
        models = [item.held for item in answered] + [item.local_model for item in answered]
        models += [item.reply.personal_model for item in answered]
        outputs = self.engines.evaluator.outputs(torch.stack(models), [inputs for inputs, _ in ready] * 3)
        count = len(answered)
        if answered[0].behind is not None:
            outputs = outputs + self._served(answered, [inputs for inputs, _ in ready])
        targets = [targets for _, targets in ready] * (len(outputs) // count)
        found = [_score(metric, outputs, targets) for metric in self.instance.metrics]
        return [[Scores(*own[place::count]) for own in found] for place in range(count)]

    def _served(self, answered: Sequence[Unscored], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return what clients predict with cluster models behind the router: after, by one expert, before training."""
        behind = [item.behind for item in answered if item.behind is not None]
        evidence, mixtures = [each.evidence.test for each in behind], [each.mixture for each in behind]

        def outputs(models: Sequence[Tensor]) -> list[Tensor]:
            copies = [own for own, experts in zip(inputs, models, strict=True) for _ in experts]
            return self.losses.evaluator.outputs(torch.cat(list(models)), copies)

        after = outputs([each.experts for each in behind])
        found = served(self.instance.combine, after, evidence, mixtures)
        found += served(self.instance.combine, after, evidence, mixtures, one_expert=True)
        held = [each.held for each in behind if each.held is not None]
        return found + (served(self.instance.combine, outputs(held), evidence, mixtures) if held else [])

    def _cluster_scores(self, models: Tensor) -> list[list[float]]:
        """Return the score of each cluster's model on its test set, by each metric."""
        sets = self.instance.test_sets
        outputs = self.losses.evaluator.outputs(models.expand(len(sets), -1), [inputs for inputs, _ in sets])
        targets = [targets for _, targets in sets]
        return [_score(metric, outputs, targets) for metric in self.instance.metrics]


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
    here: dict[int, Any] = {
        id(reply): replace(reply, mixture=own[0], rates=own[1]) for reply, own in zip(there, numbers, strict=True)
    }
    return [here.get(id(reply), reply) for reply in replies]
