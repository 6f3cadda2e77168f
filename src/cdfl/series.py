"""Turn the events of a run into series of numbers, for plots, reports and trackers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cdfl.record import Clusters, Diverged, Event, Finished, Separated, Started, Uploaded, only

Numbers = NDArray[np.float64]
SCORES = ("held", "before", "after", "served")  # of an upload; `served` only where the reply is more than one model


@dataclass(frozen=True, eq=False)
class RunSeries:
    """A run as series. `n` uploads, `m` measurements of the clusters, K clusters."""

    name: str
    started: Started
    metric: str
    higher_is_better: bool
    clusters: list[str]  # their names
    scores: dict[str, Numbers]  # of the clients' models: held, before, after and perhaps served, each (n,)
    client: NDArray[np.int64]  # (n,)
    staleness: NDArray[np.int64]  # (n,)
    outcomes: list[str]  # (n)
    true_mixtures: Numbers  # (n, K)
    mixtures: Numbers | None  # (n, K); None if the algorithm estimates none
    divergence: Numbers  # (n,), NaN without an estimate
    bytes_up: Numbers  # (n,)
    bytes_down: Numbers  # (n,)
    cluster_uploads: NDArray[np.int64]  # (m,) uploads before each measurement
    cluster_scores: Numbers  # (m, K)
    cluster_losses: Numbers | None = None  # (m, K, K): of model k on the proxy set of cluster j
    cluster_distances: Numbers | None = None  # (m, K, K)
    finished: Finished | None = None
    num_diverged: int = 0
    notes: list[str] = field(default_factory=list)  # on the data
    warnings: list[str] = field(default_factory=list)  # clusters that can hardly be told apart

    @classmethod
    def of(cls, name: str, events: Sequence[Event]) -> "RunSeries":
        """Read the events of a run; it need not be finished."""
        started, uploads, clusters = only(events, Started), only(events, Uploaded), only(events, Clusters)
        if not started or not uploads:
            raise ValueError(f"{name} has no uploads yet; let the run make some first")
        first = started[0]
        metric = first.metrics[0]
        scores = {score: [getattr(upload, score, None) for upload in uploads] for score in SCORES}
        estimates = [upload.mixture for upload in uploads if upload.mixture is not None]
        losses = [event.losses for event in clusters if event.losses]
        distances = [event.distances for event in clusters if event.distances]
        return cls(
            name=name,
            started=first,
            metric=str(metric["name"]),
            higher_is_better=bool(metric["higher_is_better"]),
            clusters=list(first.clusters),
            scores={score: np.array(values, float) for score, values in scores.items() if None not in values},
            client=np.array([upload.client for upload in uploads]),
            staleness=np.array([upload.staleness for upload in uploads]),
            outcomes=[upload.outcome for upload in uploads],
            true_mixtures=np.array([upload.true_mixture for upload in uploads]),
            mixtures=np.array(estimates) if len(estimates) == len(uploads) else None,
            divergence=np.array([np.nan if each.divergence is None else each.divergence for each in uploads]),
            bytes_up=np.array([upload.bytes_up for upload in uploads], float),
            bytes_down=np.array([upload.bytes_down for upload in uploads], float),
            cluster_uploads=np.array([event.epoch for event in clusters]),
            cluster_scores=np.array([event.scores for event in clusters]),
            cluster_losses=np.array(losses) if losses and len(losses) == len(clusters) else None,
            cluster_distances=np.array(distances) if distances and len(distances) == len(clusters) else None,
            finished=next(iter(only(events, Finished)), None),
            num_diverged=len(only(events, Diverged)),
            notes=first.notes.splitlines(),
            warnings=[line for event in only(events, Separated) for line in event.warnings],
        )

    @property
    def num_uploads(self) -> int:
        """N."""
        return len(self.client)

    @property
    def reply(self) -> Numbers:
        """The scores of what a client gets: `served` where it is known, else `after`."""
        return self.scores.get("served", self.scores["after"])

    @property
    def metric_label(self) -> str:
        """The metric as an axis shows it."""
        return self.metric if self.higher_is_better else f"{self.metric} (lower is better)"

    def last(self, values: Numbers) -> float:
        """Return the mean over the last upload of every client, as the summary of a run has it."""
        last = {client: place for place, client in enumerate(self.client.tolist())}
        return float(np.mean(values[list(last.values())]))

    def of_client(self, client: int) -> NDArray[np.int64]:
        """Return the places of a client's uploads."""
        return np.flatnonzero(self.client == client)

    def moves(self) -> list[tuple[int, int]]:
        """Return (client, place) of the uploads before which a client's true main cluster changed."""
        main = self.true_mixtures.argmax(axis=1)
        found = []
        for client in np.unique(self.client).tolist():
            own = self.of_client(client)
            found += [
                (client, int(place)) for place, then in zip(own[1:], own[:-1], strict=True) if main[place] != main[then]
            ]
        return found

    def telling_client(self) -> int:
        """Return the client whose history shows most: many uploads, and data that move between clusters."""
        uploads = np.bincount(self.client)
        moved = np.zeros_like(uploads)
        for client, _ in self.moves():
            moved[client] += 1
        return int(np.argmax(uploads * (1 + np.minimum(moved, 4))))


def adaptation(run: RunSeries, most: int = 6) -> dict[str, Numbers]:
    """Return scores by the number of uploads since a client's main cluster changed: (most,) each; 0 is the first after.

    Empty if no main cluster changed.
    """
    moved = {place for _, place in run.moves()}
    found: dict[str, list[list[float]]] = {name: [[] for _ in range(most)] for name in run.scores}
    for client in np.unique(run.client).tolist():
        since: int | None = None
        for place in run.of_client(client).tolist():
            since = 0 if place in moved else None if since is None else since + 1
            if since is not None and since < most:
                for name, values in run.scores.items():
                    found[name][since].append(float(values[place]))
    if not moved:
        return {}
    return {name: np.array([np.mean(each) if each else np.nan for each in steps]) for name, steps in found.items()}


def smoothed(values: Numbers, window: int) -> Numbers:
    """Return the mean of the last `window` values at each place from `window` on.

    >>> smoothed(np.array([1.0, 2.0, 3.0, 5.0]), 2).tolist()
    [1.5, 2.5, 4.0]
    """
    return np.convolve(values, np.ones(window) / window, mode="valid")


def groups(runs: Iterable[RunSeries]) -> Mapping[str, list[RunSeries]]:
    """Group runs that differ in their seed only: by algorithm, and by scenario if there are several."""
    runs = list(runs)
    several = len({run.started.scenario for run in runs}) > 1
    found: dict[str, list[RunSeries]] = {}
    for run in runs:
        name = f"{run.started.algorithm} on {run.started.scenario}" if several else run.started.algorithm
        found.setdefault(name, []).append(run)
    return found


def scalars(event: Event) -> tuple[int, dict[str, float]] | None:
    """Return what a tracker records of an event: the number of uploads, and numbers by name; None for nothing."""
    match event:
        case Uploaded():
            values = {f"client/{name}": value for name in SCORES if (value := getattr(event, name, None)) is not None}
            values |= {f"{metric}/{name}": value for metric, own in event.more.items() for name, value in own.items()}
            values |= {"upload/staleness": float(event.staleness), "upload/applied": float(event.outcome == "applied")}
            if event.divergence is not None:
                values["mixture/divergence"] = event.divergence
            for cluster, share in enumerate(event.mixture or ()):
                values[f"mixture/cluster {cluster}"] = share
            return event.epoch, values
        case Clusters():
            values = {f"cluster/{cluster}": score for cluster, score in enumerate(event.scores)}
            for cluster, row in enumerate(event.losses):
                values[f"cluster_loss/{cluster}"] = row[cluster]
            return event.epoch, values
        case Finished():
            named = {"before": event.before, "after": event.after, "cluster": event.cluster}
            named["divergence"] = event.divergence
            return event.uploads, {f"final/{name}": value for name, value in named.items() if value is not None}
        case _:
            return None


def server_scalars(outcome: str, staleness: int, cluster_losses: Sequence[float | None]) -> dict[str, float]:
    """Return what a tracker records of an upload to a server: nothing of single clients.

    >>> server_scalars("applied", 3, [0.5, None])
    {'upload/staleness': 3.0, 'upload/applied': 1.0, 'cluster_loss/0': 0.5}
    """
    values = {"upload/staleness": float(staleness), "upload/applied": float(outcome == "applied")}
    return values | {f"cluster_loss/{k}": loss for k, loss in enumerate(cluster_losses) if loss is not None}
