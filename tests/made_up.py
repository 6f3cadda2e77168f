"""Runs with made-up events: quick, and with numbers that can be worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from cdfl.run_events import Clusters, Diverged, Event, Finished, Started, Uploaded
from cdfl.run_folder import RunFolder

ACCURACY = {"name": "accuracy", "higher_is_better": True}
RMSE = {"name": "rmse", "higher_is_better": False}


def started(**changes: Any) -> Started:
    values: dict[str, Any] = {
        "scenario": "toy",
        "algorithm": "cdfl",
        "seed": 0,
        "num_clients": 3,
        "num_clusters": 2,
        "num_uploads": 12,
        "model_bytes": 1000,
        "metrics": [ACCURACY],
        "clusters": ["upright", "turned"],
    }
    return Started(**values | changes)


def uploaded(epoch: int, **changes: Any) -> Uploaded:
    """Clients take turns; a client's main cluster changes with each third of its uploads."""
    client, update = (epoch - 1) % 3, (epoch - 1) // 3
    main = (client + update // 2) % 2
    true_mixture = [0.9, 0.1] if main == 0 else [0.1, 0.9]
    values: dict[str, Any] = {
        "epoch": epoch,
        "time": float(epoch),
        "client": client,
        "update": update,
        "samples": 10,
        "staleness": min(epoch, 3),
        "outcome": "applied",
        "held": 0.5 + 0.01 * epoch,
        "before": 0.6 + 0.01 * epoch,
        "after": 0.7 + 0.01 * epoch,
        "served_held": 0.5 + 0.01 * epoch,
        "true_mixture": true_mixture,
        "mixture": [0.8, 0.2] if main == 0 else [0.2, 0.8],
        "divergence": 0.05,
        "rates": [0.1, 0.1],
        "bytes_up": 1000,
        "bytes_down": 1000,
        "client_flops": 1,
        "server_flops": 1,
        "trained": 10,
    }
    values |= changes
    return Uploaded(**{"served": values["after"]} | values)


def clusters(epoch: int, **changes: Any) -> Clusters:
    values: dict[str, Any] = {
        "scores": [0.7 + 0.01 * epoch, 0.6 + 0.01 * epoch],
        "losses": [[0.2, 1.0], [1.2, 0.3]],
        "distances": [[0.0, 2.0], [2.0, 0.0]],
    }
    return Clusters(epoch, **values | changes)


def finished(uploads: int = 12, **changes: Any) -> Finished:
    values: dict[str, Any] = {
        "uploads": uploads,
        "held": 0.6,
        "before": 0.7,
        "after": 0.8,
        "served": 0.8,
        "served_held": 0.6,
        "cluster": 0.75,
        "divergence": 0.05,
        "deprecated_share": 0.0,
        "rejected_share": 0.0,
        "diverged": 0,
        "staleness": {"0-1": 1},
        "bytes_up": 12000,
        "bytes_down": 12000,
        "client_flops": 12,
        "server_flops": 12,
        "trained": 120,
    }
    return Finished(**values | changes)


def events(
    uploads: int = 12, start: dict[str, Any] | None = None, upload: dict[str, Any] | None = None, **ends: Any
) -> list[Event]:
    """A whole run; `start`, `upload` and others change the first event, each upload and the last."""
    made: list[Event] = [started(**{"num_uploads": uploads} | (start or {})), clusters(0)]
    for epoch in range(1, uploads + 1):
        made.append(uploaded(epoch, **upload or {}))
        if epoch % 3 == 0:
            made.append(clusters(epoch))
    return [*made, finished(uploads, **ends)]


def scored_twice(uploads: int = 12, **start: Any) -> list[Event]:
    """A run with accuracy and an error that falls as accuracy rises."""
    scored: list[Event] = []
    for event in events(uploads, start={"metrics": [ACCURACY, RMSE]} | start):
        if isinstance(event, Uploaded):
            names = ("held", "before", "after", "served", "served_held")
            event = replace(event, more={"rmse": {name: 10 * (1 - getattr(event, name)) for name in names}})
        elif isinstance(event, Clusters):
            event = replace(event, more={"rmse": [10 * (1 - score) for score in event.scores]})
        scored.append(event)
    return scored


def diverged(client: int = 0) -> Diverged:
    return Diverged(1.0, client)


def write_run(path: Path, made: list[Event]) -> Path:
    """A run folder."""
    folder = RunFolder.create(path, {"algorithm": "cdfl", "settings": {"rates": {"base_rate": 0.1}}})
    with folder.writer() as write:
        for event in made:
            write(event)
    return path
