"""Plots and progress from the events of runs."""

from cdfl.report.plot import comparison_figure, plot_run, run_figure

__all__ = ["comparison_figure", "plot_run", "run_figure"]
