"""The command line: `cdfl --help`."""

import typer

from cdfl.cli import data
from cdfl.cli.compare import compare
from cdfl.cli.plot import plot
from cdfl.cli.run import run
from cdfl.cli.scenarios import scenarios

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(run)
app.command()(compare)
app.command()(plot)
app.command()(scenarios)
app.add_typer(data.app, name="data")


@app.callback()
def main() -> None:
    """Client-Driven Federated Learning: models that follow their users' changing data without collecting it."""
