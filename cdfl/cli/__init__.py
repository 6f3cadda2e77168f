"""The command line: `cdfl --help`."""

import typer

from cdfl.cli.run import run

app = typer.Typer(
    help="Client-Driven Federated Learning: models that follow their users' changing data without collecting it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)


@app.callback()
def main() -> None:
    """Client-Driven Federated Learning: models that follow their users' changing data without collecting it."""
