"""A run in one picture: what clients gain from a reply, and how well the server reads one client's changing data."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cdfl.record import Event, Started, Uploaded, only

WINDOW = 60  # uploads that a point of a curve is the mean of
BEFORE, AFTER, OTHER = "#7f8fa6", "#c23616", "#40739e"


def picture(events: Sequence[Event], path: Path, rivals: Mapping[str, Sequence[Event]] | None = None) -> None:
    """Draw a run into a file (PNG, SVG or PDF by its ending); `rivals` are runs of other algorithms to compare with."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    uploads = only(events, Uploaded)
    started = only(events, Started)
    if not uploads or not started:
        raise ValueError("there are no uploads to draw; the run has not got that far")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2), layout="constrained")
    _curve(left, [upload.after for upload in uploads], f"{started[0].algorithm}: after the reply", AFTER, 2.2)
    _curve(left, [upload.before for upload in uploads], f"{started[0].algorithm}: before it", BEFORE, 1.4)
    for (name, others), style in zip((rivals or {}).items(), ("--", ":", "-."), strict=False):
        _curve(left, [upload.after for upload in only(others, Uploaded)], name, OTHER, 1.4, style)
    left.set(xlabel="upload", ylabel="accuracy on held-out data", title=f"{started[0].scenario}: all clients")
    left.legend(frameon=False, fontsize=9)
    left.spines[["top", "right"]].set_visible(False)
    _mixtures(right, uploads)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _curve(axes, values: Sequence[float], label: str, color: str, width: float, style: str = "-") -> None:  # type: ignore[no-untyped-def]
    window = min(WINDOW, len(values))
    means = np.convolve(values, np.ones(window) / window, mode="valid")
    axes.plot(np.arange(window, len(values) + 1), means, style, color=color, label=label, linewidth=width)


def _mixtures(axes, uploads: Sequence[Uploaded]) -> None:  # type: ignore[no-untyped-def]
    """The true and the estimated mixture of the client that uploaded most, side by side at each upload."""
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
