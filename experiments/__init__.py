"""The paper's tables and figures, run again: `python -m experiments list`."""
