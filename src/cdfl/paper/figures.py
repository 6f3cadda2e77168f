"""Pictures one could put into a paper: column width, readable in print, colours that most eyes can tell apart.

A colour means an algorithm, everywhere; what else differs has a line, a marker or a filling of its own.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from cdfl.paper.rows import Row

COLORS = {  # Okabe and Ito's, and a brown
    "cdfl": "#0072B2",
    "fedsoft": "#D55E00",
    "fedasync": "#009E73",
    "fedbuff": "#CC79A7",
    "ifca": "#E69F00",
    "local-keep": "#56B4E9",
    "local": "#6B4423",
    "oracle": "#000000",
}
GREY, PALE = "#777777", "#DDDDDD"  # lines and areas to compare with, of no algorithm
LABELS = {
    "cdfl": "CDFL",
    "fedsoft": "FedSoft-Async",
    "fedasync": "FedAsync",
    "fedbuff": "FedBuff",
    "ifca": "IFCA",
    "local-keep": "Local, keeps its model",
    "local": "Local",
    "oracle": "Oracle",
}
LINES = {"before": ":", "after": "-", "cluster": "--"}
MARKERS: dict[str, dict[str, Any]] = {
    "before": {"marker": "o", "mfc": "white"},
    "after": {"marker": "s"},
    "cluster": {"marker": "^"},
    "paper-reading": {"marker": "o"},
    "default": {"marker": "D", "mfc": "white"},
}
COLUMN, PAGE = 3.4, 7.0  # inches
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "figure.titlesize": 8,
    "figure.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "cdfl",  # the same picture is the same file
}
SMOKE = "smoke run: tiny, on 8x8 digits"  # whatever data are named above it
STAND_IN = "† stands in for the paper's data"
FOOT_LINE = 0.16  # inches


def legend(axes: Any, ncols: int, title: str | None = None) -> None:
    """One legend for the picture that these axes are in, above it, where it hides nothing; each label once."""
    found: dict[str, Any] = {}
    for one in axes.figure.axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    place: Any = {"loc": "outside upper center", "ncols": ncols}
    axes.figure.legend(found.values(), found.keys(), title=title, handlelength=1.8, columnspacing=1.5, **place)


def means(
    axes: Any, at: Sequence[float], trials: Sequence[Sequence[float]], *, across: bool = False, **style: Any
) -> None:
    """The mean over trials at every place, with its deviation where there are several trials; none, no point.

    Places are along the x axis, or with `across` along the y axis.
    """
    there = [(place, values) for place, values in zip(at, trials, strict=True) if values]
    places, middles = [place for place, _ in there], [fmean(values) for _, values in there]
    bars = [stdev(values) if len(values) > 1 else 0.0 for _, values in there]
    shown: Any = {"elinewidth": 0.8, "capsize": 1.5, "mew": 0.8} | style
    if across:
        axes.errorbar(middles, places, xerr=bars, **shown)
    else:
        axes.errorbar(places, middles, yerr=bars, **shown)


def wrapped(text: str, width: int) -> str:
    r"""Text in lines of at most so many characters; a word stays whole, and † with the word before it.

    >>> wrapped("digits with fewer plates †", 12)
    'digits with\nfewer\nplates †'
    """
    joined = text.replace(" †", "\N{NO-BREAK SPACE}†")
    lines = textwrap.fill(joined, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def rows_below(axes: Any, rows: Sequence[Row]) -> None:
    """Rows of Table 1 below an axis: how many clusters each has, and the name of the data once for all of them."""
    data: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        name = row.title.removesuffix(" †").split(" (")[0]
        data.setdefault(wrapped(name + (" †" if row.stand_in else ""), 10), []).append(place)
    axes.set_xticks(range(len(rows)), [" ".join(re.findall(r"\(\d+\)", row.title)) for row in rows])
    axes.xaxis.remove_overlapping_locs = False  # the middle of three names is the place of one
    axes.set_xticks([fmean(places) for places in data.values()], data.keys(), minor=True)
    axes.tick_params(axis="x", which="both", length=0)
    axes.tick_params(axis="x", which="minor", pad=16)
    for place in [places[0] for places in data.values()][1:]:
        axes.axvline(place - 0.5, color=GREY, lw=0.4)
    axes.set_xlim(-0.7, len(rows) - 0.3)  # a name may be wider than the place of its only row


@contextmanager
def figure(folder: Path, name: str, width: float, height: float, *, smoke: bool = False, **grid: Any) -> Iterator[Any]:
    """Give the axes of a new picture, and store it as `name`.png and `name`.svg.

    Below it is written what a † in it means, and that it is of a `smoke` run; it grows by as much.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        drawn, axes = pyplot.subplots(figsize=(width, height), layout="constrained", **grid)
        try:
            yield axes
            foot = ([STAND_IN] if _has_stand_in(drawn) else []) + ([SMOKE] if smoke else [])
            if foot:
                drawn.supxlabel("\n".join(foot), style="italic")
                drawn.set_figheight(height + FOOT_LINE * len(foot))
            drawn.savefig(folder / f"{name}.png", dpi=200)
            drawn.savefig(folder / f"{name}.svg", metadata={"Date": None})
        finally:
            pyplot.close(drawn)


def _has_stand_in(drawn: Any) -> bool:
    from matplotlib.text import Text

    return any("†" in text.get_text() for text in drawn.findobj(Text))
