"""The command line: `cdfl --help`."""

from typing import Annotated

import typer

from cdfl import __version__
from cdfl.cli import data, token
from cdfl.cli.backup import backup
from cdfl.cli.clients import clients
from cdfl.cli.compare import compare
from cdfl.cli.export import export
from cdfl.cli.forget import forget
from cdfl.cli.init import init
from cdfl.cli.join import join
from cdfl.cli.paper import PASSED_ON, paper
from cdfl.cli.plot import plot
from cdfl.cli.report import report
from cdfl.cli.rollback import rollback
from cdfl.cli.run import run
from cdfl.cli.scenarios import scenarios
from cdfl.cli.serve import serve
from cdfl.cli.status import status
from cdfl.cli.track import track
from cdfl.cli.verify import verify
from cdfl.cli.watch import watch

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(run)
app.command()(compare)
app.command()(plot)
app.command()(report)
app.command()(watch)
app.command()(track)
app.command(context_settings=PASSED_ON)(paper)
app.command()(scenarios)
app.add_typer(data.app, name="data")
app.command()(init)
app.command()(serve)
app.command()(join)
app.command()(status)
app.command()(clients)
app.add_typer(token.app, name="token")
app.command()(forget)
app.command()(verify)
app.command()(backup)
app.command()(rollback)
app.command()(export)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"cdfl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit.", metavar=""
        ),
    ] = False,
) -> None:
    """Client-Driven Federated Learning: models that follow their users' changing data without collecting it."""
