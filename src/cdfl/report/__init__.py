"""Pictures and tables from the events of runs."""

from cdfl.report.picture import picture

__all__ = ["picture"]
