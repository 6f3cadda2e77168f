"""Plots from the events of runs."""

from cdfl.report.plot import plot_run

__all__ = ["plot_run"]
