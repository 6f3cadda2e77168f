"""Reduce a run to its final numbers and to curves of a few dozen points."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from cdfl.run_events import Clusters, Event, Finished, Uploaded, only
from cdfl.sim.event_builders import divergence

T = TypeVar("T")
MOST_POINTS = 60
MIXTURES_KEPT = 60  # uploads


def summarize_run(
    events: Sequence[Event], num_clients: int, *, updates: bool = False, mixtures: bool = False
) -> dict[str, Any]:
    """Return the numbers of one run.

    `end`: the final numbers. `sessions`: means over every `num_clients` uploads. `clusters`: mean accuracy of the
    cluster models at some epochs. With `updates`: means over the first, second, ... upload of each client, and how many
    clients made one. With `mixtures`: true and estimated mixtures of the last uploads.
    """
    uploads = only(events, Uploaded)
    kept: dict[str, Any] = {
        "end": _end(events, uploads),
        "sessions": _sessions(uploads, num_clients),
        "clusters": _clusters(only(events, Clusters)),
    }
    if updates:
        kept["updates"] = _updates(uploads)
    estimated = [upload for upload in uploads if upload.mixture is not None]
    if mixtures and estimated:
        last = estimated[-MIXTURES_KEPT:]
        kept["mixtures"] = {
            "true": [_rounded(upload.true_mixture, 3) for upload in last],
            "estimated": [_rounded(upload.mixture or [], 3) for upload in last],
        }
    return kept


def final_numbers(events: Sequence[Event]) -> dict[str, Any]:
    """Return the final numbers of a run; they are all that is kept of a trial."""
    end = _end(events, only(events, Uploaded))
    del end["staleness"]
    return end


def _end(events: Sequence[Event], uploads: Sequence[Uploaded]) -> dict[str, Any]:
    finished = asdict(only(events, Finished)[-1])
    for name in ("shortfall", "more", "routed"):
        if not finished[name]:
            del finished[name]
    if "routed" in finished:
        later = uploads[len(uploads) // 2 :]
        finished["routed"] |= {
            "correlation": main_share_correlation(later),
            "constant_divergence": constant_divergence(later),
        }
    end = {name: _round_all(value) for name, value in finished.items()}
    rate = fmean(max(upload.rates) for upload in uploads) if uploads else 0.0
    return end | {"rate": round(rate, 6)}  # the largest rate of an upload, mean over uploads


def main_share_correlation(uploads: Sequence[Uploaded]) -> float | None:
    """Return the correlation of the true share of the largest cluster with the client's own estimate of it."""
    shares = np.array([(max(upload.true_mixture), upload.routed["main_share"]) for upload in uploads])
    return float(np.corrcoef(shares.T)[0, 1]) if len(shares) > 1 and (shares.std(axis=0) > 0).all() else None


def constant_divergence(uploads: Sequence[Uploaded]) -> float:
    """Return the mean KL of an estimate that knows the largest cluster, and the mean of its share, and nothing else."""
    return main_and_constant([upload.true_mixture for upload in uploads])


def main_and_constant(mixtures: Sequence[Sequence[float]]) -> float:
    """Return that mean KL for some true mixtures.

    >>> main_and_constant([[0.8, 0.2], [0.2, 0.8]])
    0.0
    """
    share = fmean(max(true) for true in mixtures)
    found = []
    for true in mixtures:
        estimate = [(1 - share) / max(1, len(true) - 1)] * len(true)
        estimate[int(np.argmax(true))] = share
        found.append(divergence(true, estimate))
    return round(fmean(found), 6)


def _round_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round_all(part) for name, part in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def _sessions(uploads: Sequence[Uploaded], num_clients: int) -> dict[str, Any]:
    parts = [uploads[first : first + num_clients] for first in range(0, len(uploads), num_clients)]
    parts = _thinned([part for part in parts if len(part) == num_clients])
    curves: dict[str, Any] = {"upload": [part[-1].epoch for part in parts]}
    for name in ("before", "after", "served") if parts and parts[0][0].routed else ("before", "after"):
        curves[name] = _rounded([fmean(getattr(upload, name) for upload in part) for part in parts])
    if parts and parts[0][0].divergence is not None:
        curves["divergence"] = _rounded([fmean(upload.divergence or 0.0 for upload in part) for part in parts])
    return curves


def _updates(uploads: Sequence[Uploaded]) -> dict[str, Any]:
    by_update: defaultdict[int, list[Uploaded]] = defaultdict(list)
    for upload in uploads:
        by_update[upload.update].append(upload)
    numbers = sorted(by_update)[:MOST_POINTS]
    curves: dict[str, Any] = {"clients": [len(by_update[number]) for number in numbers]}
    served = ("served", "served_held") if uploads and uploads[0].routed else ()
    for name in ("held", "before", "after", *served):
        curves[name] = _rounded([fmean(getattr(upload, name) for upload in by_update[number]) for number in numbers])
    return curves


def _clusters(scores: Sequence[Clusters]) -> dict[str, Any]:
    scores = _thinned(scores)
    return {
        "epoch": [score.epoch for score in scores],
        "accuracy": _rounded([fmean(score.scores) for score in scores]),
    }


def _thinned(values: Sequence[T]) -> list[T]:
    """Return at most `MOST_POINTS` values, evenly spread, with the first and the last."""
    if len(values) <= MOST_POINTS:
        return list(values)
    return [values[place] for place in np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int)]


def _rounded(values: Iterable[float], digits: int = 4) -> list[float]:
    return [round(value, digits) for value in values]
