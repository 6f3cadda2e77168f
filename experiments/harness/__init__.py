"""What the experiments share: cells, the runs of them, result files, tables and figures.

A cell is one run of the study: scenario, preset, algorithm, seed and changes. Results lie in a folder, one JSON file
for each scenario. A stored cell is not run again, so one run serves several tables.
"""

from experiments.harness.cells import Cell, resolve
from experiments.harness.experiment import Experiment
from experiments.harness.results import Kept, Results
from experiments.harness.rows import EVERY_ROW, Row, row_cells

__all__ = ["EVERY_ROW", "Cell", "Experiment", "Kept", "Results", "Row", "resolve", "row_cells"]
