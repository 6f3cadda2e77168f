"""Turn the events of a run into series of numbers, for plots, reports and trackers."""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cdfl.argument_checks import did_you_mean
from cdfl.run_events import Clusters, Diverged, Event, Finished, Separated, Started, Uploaded, main_metric, only

Numbers = NDArray[np.float64]
_T = TypeVar("_T")
SCORE_WORDS = {  # the scores of an upload by their names in events, in the order of time, and what people read
    "held": "old model",  # the last reply, on the client's new data
    "before": "own training",  # what the client trained from it and uploads
    "after": "new model",  # the reply
    "served": "new model, with experts",  # only where the reply is more than one model
}
SCORES = tuple(SCORE_WORDS)
SHORT_WORDS = SCORE_WORDS | {"served": "with experts", "cluster": "clusters", "divergence": "KL"}  # heads of tables


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
    metrics: dict[str, bool] = field(default_factory=dict)  # whether higher is better, by name
    all_scores: dict[str, dict[str, Numbers]] = field(default_factory=dict)  # `scores` by each metric
    all_cluster_scores: dict[str, Numbers] = field(default_factory=dict)  # `cluster_scores` by each metric
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
        metrics = {str(each["name"]): bool(each["higher_is_better"]) for each in first.metrics}
        main, *others = metrics
        is_more = any(upload.served != upload.after for upload in uploads)  # the reply is more than one model
        names = [name for name in SCORES if name != "served" or is_more]
        scores = {main: {name: np.array([getattr(upload, name) for upload in uploads], float) for name in names}}
        for other in others:
            scores[other] = {name: np.array([upload.more[other][name] for upload in uploads], float) for name in names}
        cluster_scores = {main: np.array([event.scores for event in clusters])}
        cluster_scores |= {other: np.array([event.more[other] for event in clusters]) for other in others}
        estimates = [upload.mixture for upload in uploads if upload.mixture is not None]
        losses = [event.losses for event in clusters if event.losses]
        distances = [event.distances for event in clusters if event.distances]
        return cls(
            name=name,
            started=first,
            metric=main,
            higher_is_better=metrics[main],
            clusters=list(first.clusters),
            scores=scores[main],
            client=np.array([upload.client for upload in uploads]),
            staleness=np.array([upload.staleness for upload in uploads]),
            outcomes=[upload.outcome for upload in uploads],
            true_mixtures=np.array([upload.true_mixture for upload in uploads]),
            mixtures=np.array(estimates) if len(estimates) == len(uploads) else None,
            divergence=np.array([np.nan if each.divergence is None else each.divergence for each in uploads]),
            bytes_up=np.array([upload.bytes_up for upload in uploads], float),
            bytes_down=np.array([upload.bytes_down for upload in uploads], float),
            cluster_uploads=np.array([event.epoch for event in clusters]),
            cluster_scores=cluster_scores[main],
            cluster_losses=np.array(losses) if losses and len(losses) == len(clusters) else None,
            cluster_distances=np.array(distances) if distances and len(distances) == len(clusters) else None,
            metrics=metrics,
            all_scores=scores,
            all_cluster_scores=cluster_scores,
            finished=next(iter(only(events, Finished)), None),
            num_diverged=len(only(events, Diverged)),
            notes=first.notes.splitlines(),
            warnings=[line for event in only(events, Separated) for line in event.warnings],
        )

    def by(self, metric: str | None) -> "RunSeries":
        """Return the run as another of its metrics scores it; by default, as the main one."""
        metric = metric or next(iter(self.metrics))
        if metric not in self.metrics:
            there = f"there are {', '.join(self.metrics)}{did_you_mean(metric, self.metrics)}"
            raise ValueError(f"{self.name} has no metric {metric!r}; {there}")
        return replace(
            self,
            metric=metric,
            higher_is_better=self.metrics[metric],
            scores=self.all_scores[metric],
            cluster_scores=self.all_cluster_scores[metric],
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


def check_one_metric(runs: Sequence[RunSeries]) -> None:
    """Raise ValueError unless runs have one main metric, and so can be compared."""
    first = runs[0]
    for run in runs:
        if (run.metric, run.higher_is_better) != (first.metric, first.higher_is_better):
            raise ValueError(
                f"{run.name} is scored by {run.metric_label}, {first.name} by {first.metric_label}; expected runs with "
                "the same metric"
            )


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


class Scalars:
    """What trackers record of a run: numbers by name, at the number of uploads so far.

    Names hold ASCII letters, digits, _ and one /, which every tracker takes; what stands before the / is a group.
    """

    def __init__(self) -> None:
        self._metric, self._clusters = "score", list[str]()
        self._last: dict[str, dict[int, float]] = {}  # by name: of the last upload of each client; trackers get means
        self._sums: dict[str, float] = {}

    def of(self, event: Event) -> tuple[int, dict[str, float]] | None:
        """Take the next event; return its step and numbers, or None if there is nothing to record."""
        match event:
            case Started():
                self._metric, self._clusters = _plain(main_metric([event])[0]), tracked_names(event.clusters)
                return None
            case Uploaded():
                return event.epoch, self._of_upload(event)
            case Clusters():
                values = {f"{self._metric}_clusters/{k}": score for k, score in self._named(event.scores)}
                own = [row[cluster] for cluster, row in enumerate(event.losses)]
                return event.epoch, values | {
                    f"cluster_loss/{k}": loss for k, loss in self._named(own) if loss is not None
                }
            case Finished():
                return event.uploads, self._of_end(event)
            case _:
                return None

    def _of_upload(self, event: Uploaded) -> dict[str, float]:
        scores = {f"{self._metric}/{name}": getattr(event, name) for name in SCORES}
        scores |= {
            f"{_plain(metric)}/{name}": value for metric, own in event.more.items() for name, value in own.items()
        }
        one = {name.replace("/", "_upload/"): value for name, value in scores.items()}
        one |= {"upload/staleness": float(event.staleness), "upload/applied": float(event.outcome == "applied")}
        if event.divergence is not None:
            scores["mixture/KL"] = event.divergence
        scores |= {f"mixture/{k}": share for k, share in self._named(event.mixture or ())}
        for name, value in scores.items():
            if math.isfinite(value):  # one NaN would stay in the sum
                last = self._last.setdefault(name, {})
                self._sums[name] = self._sums.get(name, 0.0) + value - last.get(event.client, 0.0)
                last[event.client] = value
        return one | {name: self._sums[name] / len(last) for name, last in self._last.items()}

    def _of_end(self, event: Finished) -> dict[str, float]:
        named = {f"{self._metric}_{name}": getattr(event, name) for name in SCORES}
        named |= {f"{self._metric}_clusters": event.cluster, "KL": event.divergence}
        named |= {"too_stale": event.deprecated_share, "rejected": event.rejected_share}
        named |= {"megabytes_up": event.bytes_up / 1e6, "megabytes_down": event.bytes_down / 1e6}
        return {f"final/{name}": value for name, value in named.items() if value is not None}

    def _named(self, values: Sequence[_T]) -> Iterator[tuple[str, _T]]:
        names = self._clusters if len(self._clusters) == len(values) else map(str, range(len(values)))
        return zip(names, values, strict=False)


def tracked_names(clusters: Sequence[str]) -> list[str]:
    """Return the names of clusters as trackers get them: with their numbers, which keeps their order.

    >>> tracked_names(["0°", "light & dark"])
    ['0_0deg', '1_light_dark']
    """
    return [f"{number}_{_plain(name)}".rstrip("_") for number, name in enumerate(clusters)]


def _plain(name: str) -> str:
    letters = unicodedata.normalize("NFKD", name.replace("°", "deg")).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]+", "_", letters).strip("_")


def server_scalars(
    outcome: str,
    staleness: int,
    cluster_losses: Sequence[float | None],
    clusters: Sequence[str],
    report: Sequence[float] = (),
) -> dict[str, float]:
    """Return what a tracker records of an upload to a server: nothing of single clients but losses they report.

    >>> server_scalars("applied", 3, [0.5, None], ["0_upright", "1_turned"], (0.9, 0.4))
    {'upload/staleness': 3.0, 'upload/applied': 1.0, 'reported_loss/held': 0.9, 'reported_loss/after': 0.4, \
'cluster_loss/0_upright': 0.5}
    """
    values = {"upload/staleness": float(staleness), "upload/applied": float(outcome == "applied")}
    values |= {f"reported_loss/{name}": loss for name, loss in zip(("held", "after"), report, strict=False)}
    named = zip(clusters, cluster_losses, strict=False)
    return values | {f"cluster_loss/{name}": loss for name, loss in named if loss is not None}
