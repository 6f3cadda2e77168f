"""`python -m cdfl` is `cdfl`."""

from cdfl.cli import app

app(prog_name="cdfl")
