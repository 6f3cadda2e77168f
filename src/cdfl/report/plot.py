"""Plot a run: scores before and after the reply, and one client's true and estimated mixtures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cdfl.record import Event, Started, Uploaded, main_metric, metric_label, only

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOW = 60  # uploads averaged in one point of a curve; fewer in short runs
BEFORE, AFTER = "#7f8fa6", "#c23616"
OTHERS = ("#40739e", "#44bd32", "#8c7ae6", "#e1b12c")
STYLES = ("--", ":", "-.")


def plot_run(events: Sequence[Event], path: Path, rivals: Mapping[str, Sequence[Event]] | None = None) -> None:
    """Plot a run into a file; its suffix gives the format. `rivals` are other runs to compare with."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = run_figure(events, rivals)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def run_figure(events: Sequence[Event], rivals: Mapping[str, Sequence[Event]] | None = None) -> "Figure":
    """Return the figure of a run."""
    uploads = only(events, Uploaded)
    started = only(events, Started)
    if not uploads or not started:
        raise ValueError("there are no uploads to plot; let the run make some first")
    others = {name: only(theirs, Uploaded) for name, theirs in (rivals or {}).items()}
    if empty := [name for name, theirs in others.items() if not theirs]:
        raise ValueError(f"there are no uploads to plot in {', '.join(empty)}; leave these runs out")
    if differing := [name for name, theirs in (rivals or {}).items() if main_metric(theirs) != main_metric(started)]:
        raise ValueError(f"{', '.join(differing)} is scored by another metric than {main_metric(started)[0]}")
    window = smoothing(min(map(len, (uploads, *others.values()))))
    figure: Figure
    figure, (left, right) = _figure(1, 2, figsize=(10, 3.6), width_ratios=(3, 2), layout="constrained")
    after, before = [upload.after for upload in uploads], [upload.before for upload in uploads]
    _curve(left, after, window, f"{started[0].algorithm}: after the reply", color=AFTER, linewidth=2.2)
    _curve(left, before, window, f"{started[0].algorithm}: before it", color=BEFORE, linewidth=1.4)
    for place, (name, theirs) in enumerate(others.items()):
        style = {"color": OTHERS[place % len(OTHERS)], "linestyle": STYLES[place % len(STYLES)], "linewidth": 1.4}
        _curve(left, [upload.after for upload in theirs], window, name, **style)
    _label(left, started[0], window)
    left.legend(frameon=False, fontsize=9, ncols=1 + len(others) // 6)
    _mixtures(right, uploads)
    return figure


def comparison_figure(runs: Mapping[str, Sequence[Sequence[Event]]]) -> "Figure":
    """Return a figure of several algorithms: scores after the reply, mean over seeds, with the range as a band."""
    curves = {
        name: [[own.after for own in only(events, Uploaded)] for events in trials] for name, trials in runs.items()
    }
    shortest = min(len(values) for trials in curves.values() for values in trials)
    if not shortest:
        raise ValueError("there are no uploads to plot; let every run make some first")
    window = smoothing(shortest)
    figure: Figure
    figure, axes = _figure(1, 1, figsize=(7, 4), layout="constrained")
    for place, (name, trials) in enumerate(curves.items()):
        smooth = [np.convolve(values[:shortest], np.ones(window) / window, mode="valid") for values in trials]
        at, color = np.arange(window, shortest + 1), (AFTER, *OTHERS, BEFORE)[place % (2 + len(OTHERS))]
        style = "-" if place <= len(OTHERS) + 1 else "--"
        axes.plot(at, np.mean(smooth, axis=0), style, color=color, label=name, linewidth=2.2 if place == 0 else 1.4)
        if len(smooth) > 1:
            axes.fill_between(at, np.min(smooth, axis=0), np.max(smooth, axis=0), color=color, alpha=0.15, linewidth=0)
    first = only(next(iter(runs.values()))[0], Started)[0]
    _label(axes, first, window)
    axes.set_title(f"{first.scenario}: after the reply, {len(next(iter(runs.values())))} seeds")
    axes.legend(frameon=False, fontsize=9)
    return figure


def _figure(rows: int, columns: int, **options: Any) -> Any:
    """Return a figure of pyplot and its axes. In a notebook it is shown once: where it is the result of a cell."""
    from matplotlib import get_backend, pyplot

    figure, axes = pyplot.subplots(rows, columns, **options)
    if "inline" in get_backend().lower():
        pyplot.close(figure)
    return figure, axes


def _label(axes: Any, started: Started, window: int) -> None:
    name, higher_is_better = main_metric([started])
    smoothed = f" (each point: mean of the last {window})" if window > 1 else ""
    label = metric_label(f"{name} on held-out data", higher_is_better=higher_is_better)
    axes.set(xlabel=f"upload{smoothed}", ylabel=label, title=f"{started.scenario}: all clients")
    axes.spines[["top", "right"]].set_visible(False)


def smoothing(num_uploads: int) -> int:
    """Return how many uploads are averaged in one point, so that a short run still gives a curve.

    >>> [smoothing(uploads) for uploads in (1, 12, 60, 600)]
    [1, 3, 15, 60]
    """
    return max(1, min(WINDOW, num_uploads // 4))


def _curve(axes, values: Sequence[float], window: int, label: str, **style: Any) -> None:  # type: ignore[no-untyped-def]
    means = np.convolve(values, np.ones(window) / window, mode="valid")
    marker = "o" if len(means) == 1 else None
    axes.plot(np.arange(window, len(values) + 1), means, marker=marker, label=label, **style)


def _mixtures(axes, uploads: Sequence[Uploaded]) -> None:  # type: ignore[no-untyped-def]
    """Draw the true and estimated mixtures of the client with most uploads, side by side."""
    counts: dict[int, int] = {}
    for upload in uploads:
        counts[upload.client] = counts.get(upload.client, 0) + 1
    chosen = max(counts, key=lambda client: counts[client])
    mine = [upload for upload in uploads if upload.client == chosen and upload.mixture is not None][:16]
    colors = ("#273c75", "#e1b12c", "#44bd32", "#c23616", "#8c7ae6", "#7f8fa6")
    for place, upload in enumerate(mine):
        for shift, shares in ((-0.2, upload.true_mixture), (0.2, upload.mixture or [])):
            bottom = 0.0
            for cluster, share in enumerate(shares):
                shown = {"color": colors[cluster % len(colors)], "alpha": 1.0 if shift < 0 else 0.55}
                axes.bar(place + shift, share, 0.36, bottom=bottom, **shown)
                bottom += share
    axes.set(xlabel="its uploads", ylabel="share of each cluster", title=f"client {chosen}: true and estimated mixture")
    axes.set_xticks([])
    axes.spines[["top", "right"]].set_visible(False)
