"""Pictures one could put into a paper: column width, readable in print, colours that most eyes can tell apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, by what they always mean here.
COLORS = {
    "cdfl": "#0072B2",
    "fedsoft": "#D55E00",
    "fedasync": "#009E73",
    "fedbuff": "#CC79A7",
    "ifca": "#E69F00",
    "local": "#56B4E9",
    "local-restart": "#999999",
    "oracle": "#000000",
    "paper": "#999999",
}
LABELS = {
    "cdfl": "CDFL",
    "fedsoft": "FedSoft-Async",
    "fedasync": "FedAsync",
    "fedbuff": "FedBuff",
    "ifca": "IFCA",
    "local": "Local, keeps its model",
    "local-restart": "Local",
    "oracle": "Oracle",
}
COLUMN, PAGE = 3.4, 7.0  # inches
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "cdfl",  # the same picture is the same file
}


def legend(axes: Any, ncols: int) -> None:
    """One legend for a whole picture, above it, where it hides nothing; from the labels of these axes."""
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=ncols, handlelength=1.5)


@contextmanager
def figure(folder: Path, name: str, width: float, height: float, **grid: Any) -> Iterator[Any]:
    """Give the axes of a new picture, and store it as `name`.png and `name`.svg."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        drawn, axes = pyplot.subplots(figsize=(width, height), layout="constrained", **grid)
        try:
            yield axes
            drawn.savefig(folder / f"{name}.png", dpi=200)
            drawn.savefig(folder / f"{name}.svg", metadata={"Date": None})
        finally:
            pyplot.close(drawn)
