"""`python -m cdfl` runs the command `cdfl`."""

from cdfl.cli import app

app(prog_name="cdfl")
