"""Pictures for a paper: column width, readable in print, colours that colour-blind readers can tell apart.

A colour always means an algorithm. Line style, marker and filling show everything else.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from cdfl.report.style import ALGORITHMS
from cdfl.run_series import SCORE_WORDS
from experiments.harness.table1_rows import Row

COLORS = ALGORITHMS
GREY, PALE = "#777777", "#DDDDDD"  # reference lines and areas
LABELS = {
    "cdfl": "CDFL",
    "fedsoft": "FedSoft-Async",
    "fedem": "FedEM-Async",
    "fedasync": "FedAsync",
    "fedbuff": "FedBuff",
    "fedbuff-int8": "FedBuff, int8",
    "ifca": "IFCA",
    "local-keep": "Local (keeps)",
    "local": "Local",
    "frozen": "Frozen start",
    "oracle": "Oracle",
}
WORDS = {
    "held": SCORE_WORDS["held"],
    "before": SCORE_WORDS["before"],
    "after": SCORE_WORDS["after"],
    "cluster": "cluster",
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
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "cdfl",  # the same picture gives the same file
}
SMOKE = "smoke run: tiny, on 8x8 digits"
STAND_IN = "† stands in for the paper's data"
FOOT_LINE = 0.16  # inches


def legend(axes: Any, ncols: int, title: str | None = None) -> None:
    """Put one legend above the whole picture, with each label once."""
    found: dict[str, Any] = {}
    for one in axes.figure.axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    place: Any = {"loc": "outside upper center", "ncols": ncols}
    axes.figure.legend(found.values(), found.keys(), title=title, handlelength=1.8, columnspacing=1.5, **place)


def means(
    axes: Any, at: Sequence[float], trials: Sequence[Sequence[float]], *, across: bool = False, **style: Any
) -> None:
    """Plot the mean over trials at every place, with its deviation if there are several; no trials, no point.

    Places lie on the x axis, or with `across` on the y axis.
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
    r"""Wrap text to lines of at most `width` characters; † stays with the word before it.

    >>> wrapped("digits with fewer plates †", 12)
    'digits with\nfewer\nplates †'
    """
    joined = text.replace(" †", "\N{NO-BREAK SPACE}†")
    lines = textwrap.fill(joined, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def rows_below(axes: Any, rows: Sequence[Row]) -> None:
    """Label an axis with rows of Table 1: the number of clusters of each, and the name of the data once."""
    data: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        name = row.title.removesuffix(" †").split(" (")[0]
        data.setdefault(wrapped(name + (" †" if row.stand_in else ""), 10), []).append(place)
    axes.set_xticks(range(len(rows)), [" ".join(re.findall(r"\(\d+\)", row.title)) for row in rows])
    axes.xaxis.remove_overlapping_locs = False  # the middle of three ticks is also the place of the name
    axes.set_xticks([fmean(places) for places in data.values()], data.keys(), minor=True)
    axes.tick_params(axis="x", which="both", length=0)
    axes.tick_params(axis="x", which="minor", pad=16)
    for place in [places[0] for places in data.values()][1:]:
        axes.axvline(place - 0.5, color=GREY, lw=0.4)
    axes.set_xlim(-0.7, len(rows) - 0.3)


@contextmanager
def figure(folder: Path, name: str, width: float, height: float, *, smoke: bool = False, **grid: Any) -> Iterator[Any]:
    """Yield the axes of a new picture; then store it as `name`.png and `name`.svg.

    Lines below the picture explain † and mark a `smoke` run; the picture grows by their height.
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
