"""The paper's results, run again: what the files in `experiments/` are written with.

A cell is one run of the study. Results are kept in a folder of JSON files, one a scenario; whatever needs a cell that
is there does not run it again, so that one run serves several tables and figures.
"""

from cdfl.paper.cells import Cell, resolve
from cdfl.paper.results import Kept, Results
from cdfl.paper.rows import EVERY_ROW, Row, row_cells

__all__ = ["EVERY_ROW", "Cell", "Kept", "Results", "Row", "resolve", "row_cells"]
