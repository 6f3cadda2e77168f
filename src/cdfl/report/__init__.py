"""Pictures and reports from the events of runs."""

from cdfl.report.figures import comparison, story
from cdfl.report.html import write_report
from cdfl.report.style import save

__all__ = ["comparison", "save", "story", "write_report"]
