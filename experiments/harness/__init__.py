"""What the experiments share: the runner, result files, tables and figures.

A run is identified by a `RunKey`: scenario, preset, algorithm, seed and changes. Results are stored in a folder, one
JSON file for each scenario. A stored run is not repeated, so it serves several tables.
"""

from experiments.harness.experiment import Experiment
from experiments.harness.results_folder import Results, StoredRun
from experiments.harness.run_keys import RunKey, resolve
from experiments.harness.table1_rows import EVERY_ROW, Row, row_keys

__all__ = ["EVERY_ROW", "Experiment", "Results", "Row", "RunKey", "StoredRun", "resolve", "row_keys"]
