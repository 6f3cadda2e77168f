"""Pictures of mixtures. The truth is always the thin bar or panel above, the estimate the thick one below it.

The first cluster is always on top, and at the top of the legend.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cdfl.report import style
from cdfl.run_series import Numbers, RunSeries, smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MOST_BARS = 30  # uploads of one client that are drawn
THIN, THICK = 2, 3  # heights of the true and the estimated panel
NAMES, LETTERS = 0.3, 14  # width of the clusters' names beside the panels; letters in a line
BINS = 10  # of true shares
FEWEST = 5  # shares in a bin that is drawn
WINDOW = 60  # uploads averaged in one point of a curve; fewer in short runs


def smoothing(num_uploads: int) -> int:
    """Return how many uploads are averaged in one point, so that a short run still gives a curve.

    >>> [smoothing(uploads) for uploads in (1, 12, 60, 600)]
    [1, 3, 15, 60]
    """
    return max(1, min(WINDOW, num_uploads // 4))


def history(
    figure: "Figure | SubFigure", run: RunSeries, client: int, samples: Sequence[Numbers] | None = None
) -> None:
    """Draw the true mixture of a client at each upload, and the estimate below it.

    `samples` are one image of each cluster, for the legend.
    """
    places = run.of_client(client)[:MOST_BARS]
    uploads = np.arange(1.0, len(places) + 1)
    moved = np.flatnonzero(np.diff(run.true_mixtures[places].argmax(axis=1)))
    shown = [(run.true_mixtures[places], 1.0, f"1  {_changes(client, len(moved))}", "true")]
    if run.mixtures is not None:
        shown.append((run.mixtures[places], 0.62, "2  Estimate, from its models alone", "estimate"))
    grid = figure.add_gridspec(len(shown), 2, width_ratios=(1, NAMES), height_ratios=(THIN, THICK)[: len(shown)])
    lowest = figure.add_subplot(grid[-1, 0])
    panels = [*(figure.add_subplot(grid[row, 0], sharex=lowest) for row in range(len(shown) - 1)), lowest]
    for axes, (mixtures, width, title, word) in zip(panels, shown, strict=True):
        _stack(axes, uploads, mixtures, width)
        axes.set(title=title, ylim=(0, 1), yticks=[0, 0.5, 1], yticklabels=["0 %", "50 %", "100 %"])
        axes.set_ylabel(word, color=style.INK, fontweight="bold")
        axes.grid(visible=False)
        axes.margins(x=0.01)
        for place in moved:
            axes.axvline(place + 1.5, color=style.INK, linewidth=1.2, linestyle=(0, (4, 3)))
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=False)
    _name_clusters(figure.add_subplot(grid[:, 1]), run.clusters, samples)
    lowest.set_xlabel("its uploads, in order" + ("; dashed: a change" if len(moved) else ""))
    whole_numbers(lowest)


def _changes(client: int, times: int) -> str:
    """Say what happens to the data of a client.

    >>> _changes(3, 0), _changes(3, 2)
    ("Client 3's data are a mixture", "Client 3's data change 2 times")
    """
    if not times:
        return f"Client {client}'s data are a mixture"
    return f"Client {client}'s data change {'once' if times == 1 else f'{times} times'}"


def whole_numbers(axes: "Axes") -> None:
    """Let the ticks of the x axis be whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _stack(axes: "Axes", x: Numbers, mixtures: Numbers, width: float) -> None:
    bottom = np.zeros(len(x))
    for cluster in reversed(range(mixtures.shape[1])):  # the first one ends on top
        shares = mixtures[:, cluster]
        axes.bar(
            x,
            shares,
            width,
            bottom=bottom,
            color=style.cluster_color(cluster),
            hatch=style.cluster_hatch(cluster),
            edgecolor="white" if width < 1 else style.cluster_color(cluster),
            linewidth=0.6 if width < 1 else 0.2,
        )
        bottom = bottom + shares


def _name_clusters(axes: "Axes", names: Sequence[str], samples: Sequence[Numbers] | None) -> None:
    """Fill the axes with the names of the clusters, and with an image of each where there is one."""
    from matplotlib.offsetbox import AnnotationBbox, DrawingArea, HPacker, OffsetImage, TextArea, VPacker
    from matplotlib.patches import Rectangle

    rows: list[Any] = [TextArea("kinds of data", textprops={"fontsize": 9, "fontweight": "bold"})]
    for cluster in range(len(names)):
        color, hatch = style.cluster_color(cluster), style.cluster_hatch(cluster)
        swatch = DrawingArea(14, 10, 0, 0)
        swatch.add_artist(Rectangle((0, 0), 14, 10, facecolor=color, edgecolor="white", hatch=hatch))
        parts: list[Any] = [swatch]
        if samples is not None:
            image = np.asarray(samples[cluster])
            parts.append(OffsetImage(image, zoom=30 / max(image.shape[:2]), cmap="gray", interpolation="bicubic"))
        parts.append(TextArea(textwrap.fill(names[cluster], LETTERS), textprops={"fontsize": 9}))
        rows.append(HPacker(children=parts, align="center", pad=0, sep=5))
    box = VPacker(children=rows, align="left", pad=0, sep=4)
    place = AnnotationBbox(box, (0, 0.5), xycoords="axes fraction", box_alignment=(0, 0.5), frameon=False, pad=0)
    place.set_in_layout(False)
    axes.add_artist(place)
    axes.set_axis_off()


def mixture_figure(run: RunSeries) -> "Figure | None":
    """Draw how near the estimates are to the truth, over all uploads; None without estimates."""
    if run.mixtures is None:
        return None
    with style.styled():
        figure = style.new_figure(11, 3.6)
        mains, shares, error = figure.subplots(1, 3)
        _main_clusters(mains, run)
        _shares(shares, run.true_mixtures, run.mixtures)
        window = smoothing(run.num_uploads)
        values = smoothed(run.divergence, window)
        error.plot(np.arange(window, run.num_uploads + 1), values, color=style.INK, linewidth=1.8)
        error.set(title=f"Mixture error: {values[-1]:.2f} at the end", xlabel=f"uploads (mean of the last {window})")
        error.set_ylabel("mixture error (KL), 0 is exact")
        error.set_ylim(bottom=0)
    return figure


def _main_clusters(axes: "Axes", run: RunSeries) -> None:
    """Draw how often the estimate took each cluster for the one with the largest share."""
    K = len(run.clusters)
    true, found = run.true_mixtures.argmax(axis=1), np.asarray(run.mixtures).argmax(axis=1)
    counts = np.zeros((K, K))
    np.add.at(counts, (true, found), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Greys", vmin=0, vmax=1.6)
    for row, column in np.ndindex(K, K):
        weight = "bold" if row == column else "normal"
        axes.text(
            column, row, f"{100 * shares[row, column]:.0f} %", ha="center", va="center", fontsize=9, fontweight=weight
        )
    axes.set_xticks(range(K), run.clusters, rotation=30, ha="right")
    axes.set_yticks(range(K), run.clusters)
    axes.set(
        xlabel="largest share, estimate",
        ylabel="largest share, true",
        title=f"Largest share right: {100 * np.mean(true == found):.0f} % of uploads",
    )
    axes.grid(visible=False)


def _shares(axes: "Axes", true: Numbers, estimated: Numbers) -> None:
    """Draw the median estimate for each true share, the half around it, and the largest estimate."""
    bins = np.minimum((true.ravel() * BINS).astype(int), BINS - 1)
    kept = [place for place in range(BINS) if np.count_nonzero(bins == place) >= FEWEST]
    x = np.array([true.ravel()[bins == place].mean() for place in kept])
    parts = np.array([np.percentile(estimated.ravel()[bins == place], (25, 50, 75)) for place in kept]).reshape(-1, 3)
    largest = float(estimated.max())
    if largest < 0.95 * true.max():
        axes.axhline(largest, color=style.QUIET, linewidth=1, linestyle=(0, (1, 2)))
        axes.text(0.02, largest + 0.02, f"no estimate is above {100 * largest:.0f} %", color=style.QUIET, fontsize=9)
    axes.plot([0, 1], [0, 1], color=style.QUIET, linewidth=1.2, linestyle="--")
    axes.errorbar(
        x, parts[:, 1], yerr=np.abs(parts[:, [0, 2]] - parts[:, [1]]).T, color=style.INK, marker="o", ms=5, capsize=2,
        ls="", label="median, and the half around it",
    )  # fmt: skip
    ticks = np.linspace(0, 1, 6)
    words = [f"{100 * tick:.0f} %" for tick in ticks]
    axes.set(
        title="Large shares are estimated too small" if x.size and parts[-1, 1] < 0.9 * x[-1] else "Shares, estimated",
        xlabel="true share; dashed: exact",
        ylabel="estimate",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    axes.set_xticks(ticks, words)
    axes.set_yticks(ticks, words)
    axes.legend(loc="upper left", frameon=False, fontsize=8)
