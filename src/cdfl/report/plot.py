"""Plot a run: scores before and after the reply, and one client's true and estimated mixtures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdfl.record import Event, Started, Uploaded, main_metric, metric_label, only

WINDOW = 60  # uploads averaged in one point of a curve; fewer in short runs
BEFORE, AFTER = "#7f8fa6", "#c23616"
OTHERS = ("#40739e", "#44bd32", "#8c7ae6", "#e1b12c")
STYLES = ("--", ":", "-.")


def plot_run(events: Sequence[Event], path: Path, rivals: Mapping[str, Sequence[Event]] | None = None) -> None:
    """Plot a run into a file; its suffix gives the format. `rivals` are other runs to compare with."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

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
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2), layout="constrained")
    after, before = [upload.after for upload in uploads], [upload.before for upload in uploads]
    _curve(left, after, window, f"{started[0].algorithm}: after the reply", color=AFTER, linewidth=2.2)
    _curve(left, before, window, f"{started[0].algorithm}: before it", color=BEFORE, linewidth=1.4)
    for place, (name, theirs) in enumerate(others.items()):
        style = {"color": OTHERS[place % len(OTHERS)], "linestyle": STYLES[place % len(STYLES)], "linewidth": 1.4}
        _curve(left, [upload.after for upload in theirs], window, name, **style)
    smoothed = f" (each point: mean of the last {window})" if window > 1 else ""
    name, higher_is_better = main_metric(started)
    label = metric_label(f"{name} on held-out data", higher_is_better=higher_is_better)
    left.set(xlabel=f"upload{smoothed}", ylabel=label)
    left.set_title(f"{started[0].scenario}: all clients")
    left.legend(frameon=False, fontsize=9, ncols=1 + len(others) // 6)
    left.spines[["top", "right"]].set_visible(False)
    _mixtures(right, uploads)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


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
