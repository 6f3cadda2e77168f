"""One look for every picture: colours that colour-blind people can tell apart, and lines that differ in shape, too."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdfl.run_series import SCORE_WORDS as SCORE_WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Three sets of colours that share none, so that a colour says what a line or bar is. The page has the same
# (cdfl/page/static/style.css). Any two of the first six clusters differ in the three kinds of colour blindness.
CLUSTERS = ("#333399", "#eebb11", "#aa4400", "#8899ff", "#22ddcc", "#008888", "#889900", "#880055")
# Scores are grey and differ by their line; what clients are served has a colour of its own.
SCORES = {"held": "#868c92", "before": "#5a6168", "after": "#1b1f23", "served": "#c2185b"}
SCORE_LINES = {"held": ":", "before": "--", "after": "-", "served": "-"}
OUTCOMES = {"applied": "#868c92", "deprecated": "#e0809f", "rejected": "#a3123d"}
OUTCOME_WORDS = {"applied": "applied", "deprecated": "too stale", "rejected": "rejected"}
# Okabe and Ito's colours, in pictures that compare algorithms.
ALGORITHMS = {
    "cdfl": "#0072b2",
    "fedsoft": "#d55e00",
    "fedem": "#b8a800",
    "fedasync": "#009e73",
    "fedbuff": "#cc79a7",
    "ifca": "#e69f00",
    "local-keep": "#56b4e9",
    "local": "#6b4423",
    "frozen": "#8d6ab8",
    "oracle": "#000000",
}
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "////", "....", "xxxx")  # from the ninth cluster on, colours come again with a pattern
INK, QUIET, GRID = "#1b1f23", "#565e66", "#e3e6e9"
DPI = 150
WIDTH = 10.0  # inches of a wide picture: on a page of 830 pixels, its letters are about as large as the text's
RULES: Any = {
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "cdfl",  # the same picture is the same file
    "svg.fonttype": "path",  # looks the same everywhere
    "hatch.linewidth": 0.6,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this look."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'cdfl[sim]'") from None

    with matplotlib.rc_context(RULES):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure; call it inside `styled`. In a notebook it is shown where it is the result of a cell."""
    from matplotlib.figure import Figure

    if "IPython" not in sys.modules:
        return Figure(figsize=(width, height), layout="constrained")
    from matplotlib import pyplot  # tells notebooks how to show figures

    figure = pyplot.figure(figsize=(width, height), layout="constrained")
    pyplot.close(figure)
    return figure


def save(figure: "Figure", path: Path) -> None:
    """Write a figure; the suffix names the format. The same figure gives the same bytes."""
    is_svg = path.suffix == ".svg"
    metadata: dict[str, Any] = {"Date": None} if is_svg else {"Software": None} if path.suffix == ".png" else {}
    with styled():
        figure.savefig(path, dpi=DPI, metadata=metadata)


def algorithm_color(name: str, place: int) -> str:
    """Return the colour of an algorithm; `place` chooses one for those that have none of their own."""
    return ALGORITHMS.get(name.partition(" ")[0], [*ALGORITHMS.values()][place % len(ALGORITHMS)])


def cluster_color(cluster: int) -> str:
    """Return the colour of a cluster."""
    return CLUSTERS[cluster % len(CLUSTERS)]


def cluster_hatch(cluster: int) -> str:
    """Return the pattern of a cluster."""
    return HATCHES[cluster // len(CLUSTERS) % len(HATCHES)]


def label_beside(axes: "Axes", labels: Sequence[tuple[float, str, str]], gap: float = 0.075) -> None:
    """Write names to the right of the axes at the height where their lines end: (height, name, colour).

    Names that would overlap are moved apart; `gap` is the least distance, as a share of the axes' height.
    """
    low, high = axes.get_ylim()
    wanted = sorted((min(1.0, max(0.0, (height - low) / (high - low))), name, color) for height, name, color in labels)
    places = spread([place for place, _, _ in wanted], gap)
    places = [min(place, 1 - gap * above) for above, place in zip(reversed(range(len(places))), places, strict=True)]
    for place, (end, name, color) in zip(places, wanted, strict=True):
        axes.annotate(
            name,
            xy=(1.0, end),
            xytext=(1.03, place),
            xycoords="axes fraction",
            color=color,
            va="center",
            fontweight="bold",
            fontsize=9,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.8, "shrinkA": 1, "shrinkB": 0},
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Return ascending places, moved as little as needed to be at least `gap` apart; their centre stays.

    >>> spread([0.5, 0.52, 0.9], 0.1)
    [0.46, 0.56, 0.9]
    """
    found: list[list[float]] = []  # groups: [sum of places, count]
    for place in places:
        found.append([place, 1.0])
        while len(found) > 1 and _begin(found[-1], gap) < _begin(found[-2], gap) + found[-2][1] * gap:
            total, count = found.pop()
            found[-1] = [found[-1][0] + total, found[-1][1] + count]
    return [round(_begin(group, gap) + step * gap, 6) for group in found for step in range(int(group[1]))]


def _begin(group: Sequence[float], gap: float) -> float:
    total, count = group
    return total / count - (count - 1) * gap / 2
