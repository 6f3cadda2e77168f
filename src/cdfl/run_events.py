"""The events of a run, and their lines in a file.

A run yields events. Progress bars, files, tables and plots all read this one stream. Scores are on held-out samples.
`Started.metrics` says what they measure and which direction is better; the first metric is the main one. Scores by the
other metrics are in the fields named `more`.
"""

import json
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from math import floor, isfinite, log10
from typing import Any, TypeVar


@dataclass(frozen=True)
class Started:
    """The run starts."""

    scenario: str
    algorithm: str
    seed: int
    num_clients: int
    num_clusters: int
    num_uploads: int
    model_bytes: int
    metrics: list[dict[str, Any]]  # {"name": ..., "higher_is_better": ...} of each; the first is the main one
    clusters: list[str]  # their names
    notes: str = ""  # notes on the data, one on each line; omitted from the file if empty


@dataclass(frozen=True)
class Uploaded:
    """The server answered one upload: one epoch."""

    epoch: int  # t
    time: float  # virtual
    client: int
    update: int  # number of earlier uploads of this client
    samples: int
    staleness: int
    outcome: str  # applied | deprecated | rejected
    held: float  # score of the model before training, on held-out data of the same mixture
    before: float  # score of the uploaded model on the same data
    after: float  # score of the reply, as one model, on the same data
    served: float  # score of what the client predicts with after the reply: that model, or the experts
    served_held: float  # score of what it predicted with before training
    true_mixture: list[float]
    mixture: list[float] | None  # the estimate; None if the algorithm makes none
    divergence: float | None  # KL of the estimate from the truth
    rates: list[float]
    bytes_up: int
    bytes_down: int
    client_flops: int  # training and, if the client does it, estimating
    server_flops: int  # passes over the proxy sets
    trained: int  # samples in local training, all passes together
    more: dict[str, dict[str, float]] = field(default_factory=dict)  # other metric -> held, before, after, served...
    routed: dict[str, float] = field(default_factory=dict)  # cluster models behind the router: see `Routed`


@dataclass(frozen=True)
class Routed:
    """What a router makes of an upload's client: the values of `Uploaded.routed`, if the run has a router."""

    soft: float  # score of the cluster models, weighted for each input
    one: float  # score of the likeliest cluster model for each input
    divergence: float  # KL of the client's own estimate of its mixture from the truth
    main_share: float  # the client's own estimate of the share of its largest cluster
    strange: float  # share of its inputs that fit no cluster


@dataclass(frozen=True)
class Diverged:
    """Training gave a model or a loss that is not finite. No cluster moves, and the client keeps its model."""

    time: float
    client: int


@dataclass(frozen=True)
class Clusters:
    """The score of each cluster model on held-out data of its cluster, and how the models compare.

    A loss that is not finite is None. Where one model serves all clusters, it stands for each of them.
    """

    epoch: int
    scores: list[float]
    more: dict[str, list[float]] = field(default_factory=dict)  # other metric -> scores
    losses: list[list[float | None]] = field(default_factory=list)  # [k][j]: of model k on the proxy set of cluster j
    distances: list[list[float]] = field(default_factory=list)  # [k][j]: norm of the difference of two models


@dataclass(frozen=True)
class Separated:
    """Whether the clusters can be told apart, before the first upload."""

    losses: list[list[float]]  # of each cluster's model (rows) on each cluster's proxy set (columns)
    warnings: list[str] = field(default_factory=list)  # a sentence each


@dataclass(frozen=True)
class Finished:
    """The run is finished. Client scores are means over the last upload of every client; None without uploads."""

    uploads: int
    held: float | None
    before: float | None
    after: float | None
    served: float | None
    served_held: float | None
    cluster: float
    divergence: float | None
    deprecated_share: float  # of all uploads
    rejected_share: float
    diverged: int  # trainings that diverged
    staleness: dict[str, int]  # histogram: "0-7", "8-15", ... -> uploads
    bytes_up: int
    bytes_down: int
    client_flops: int
    server_flops: int
    trained: int  # samples, of all uploads
    shortfall: str = ""  # why there are fewer uploads than requested; omitted from the file if empty
    more: dict[str, dict[str, float | None]] = field(default_factory=dict)  # other metric -> held, before, ..., cluster
    routed: dict[str, float | None] = field(default_factory=dict)  # means of `Uploaded.routed`


Event = Started | Uploaded | Diverged | Clusters | Separated | Finished
_KINDS: dict[str, type] = {
    kind.__name__.lower(): kind for kind in (Started, Uploaded, Diverged, Clusters, Separated, Finished)
}
_E = TypeVar("_E", bound=Event)


def to_json(event: Event) -> str:
    """Return an event as one line of an events file.

    >>> to_json(Clusters(epoch=3, scores=[0.5, 0.75]))
    '{"event": "clusters", "epoch": 3, "scores": [0.5, 0.75]}'
    """
    defaults = {own.name: _default(own) for own in fields(event)}
    values = {name: value for name, value in asdict(event).items() if value != defaults[name]}
    return json.dumps({"event": type(event).__name__.lower(), **values})


def from_json(line: str) -> Event:
    """Return the event in one line.

    >>> from_json('{"event": "clusters", "epoch": 3, "scores": [0.5, 0.75]}')
    Clusters(epoch=3, scores=[0.5, 0.75], more={}, losses=[], distances=[])
    """
    try:
        values = dict(json.loads(line))
    except (ValueError, TypeError):
        values = {}
    kind = _KINDS.get(values.pop("event", None))
    known = {} if kind is None else {own.name: _default(own) is MISSING for own in fields(kind)}
    needed = {name for name, is_needed in known.items() if is_needed}
    if kind is None or not needed <= values.keys() <= known.keys():
        raise ValueError(f"this line is not an event of this version of cdfl: {line[:80]!r}")
    event: Event = kind(**values)
    return event


def _default(own: "Field[Any]") -> Any:
    return own.default if own.default_factory is MISSING else own.default_factory()


def main_metric(events: Iterable[Event]) -> tuple[str, bool]:
    """Return the name of a run's main metric, and whether higher is better."""
    first = next((event.metrics[0] for event in events if isinstance(event, Started)), None)
    return ("score", True) if first is None else (str(first["name"]), bool(first["higher_is_better"]))


def metric_label(name: str, *, higher_is_better: bool) -> str:
    """Return a metric's name as tables and plots show it: with its direction if lower is better.

    >>> metric_label("rmse", higher_is_better=False), metric_label("accuracy", higher_is_better=True)
    ('rmse (lower is better)', 'accuracy')
    """
    return name if higher_is_better else f"{name} (lower is better)"


def score_text(value: float | None, spread: float | None = None) -> str:
    """Return a score, and its deviation, as tables show them; not every metric is a share.

    >>> score_text(0.93421), score_text(0.71, 0.0312), score_text(None)
    ('0.934', '0.710 ± 0.031', '-')
    >>> score_text(0.00043217, 0.00001), score_text(12345.6), score_text(4e-12)
    ('0.000432 ± 0.000010', '12,346', '4.00e-12')
    """
    if value is None:
        return "-"
    size = max(abs(value), spread or 0.0)
    kind = ",.0f" if size >= 1000 else ".3f" if size >= 0.01 or size == 0 else f".{2 - floor(log10(size))}f"
    if not isfinite(size) or 0 < size < 1e-6:
        kind = ".2e"
    return f"{value:{kind}}" + ("" if spread is None else f" ± {spread:{kind}}")


def only(events: Iterable[Event], kind: type[_E]) -> list[_E]:
    """Return the events of one kind."""
    return [event for event in events if isinstance(event, kind)]


# Pre-training has no events. Whoever shows progress sets this around a run, and is told (steps so far, steps in all).
pretraining: ContextVar[Callable[[int, int], Any]] = ContextVar("pretraining", default=lambda done, total: None)
