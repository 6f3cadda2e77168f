"""The command line: `cdfl --help`. A command is imported when it is called; torch takes a second."""

from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from cdfl import __version__

# Each is a function of its module, or the module's `app` with commands of its own.
COMMANDS = {
    "run": "Run a scenario.",
    "compare": "Compare algorithms over several seeds.",
    "plot": "Draw runs.",
    "report": "Write a report about runs.",
    "watch": "Show runs or a server in a browser.",
    "track": "Record finished runs with trackers.",
    "paper": "Run a table or figure of the paper; needs a checkout of the repository.",
    "scenarios": "List the scenarios.",
    "data": "List, download, check and view datasets.",
    "init": "Write an example problem.",
    "serve": "Serve a problem to clients.",
    "join": "Join a server as a client.",
    "status": "Show a server or a store in a few lines.",
    "clients": "List the clients of a server or a store.",
    "token": "Create, list and revoke the tokens of clients.",
    "forget": "Delete everything that is stored of a client.",
    "verify": "Check the snapshots and the journal of a store.",
    "backup": "Copy a store.",
    "rollback": "Return to a snapshot of a store.",
    "export": "Write the cluster models to files.",
}


class LazyCommand(TyperCommand):
    """A command that is imported when it is called."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments of the command."""
        return self.load().make_context(*args, **kwargs)

    def load(self) -> TyperCommand | TyperGroup:
        """Import the command."""
        module: Any = import_module(f"cdfl.cli.{self.name}")
        commands = getattr(module, "app", None)
        if commands is None:
            commands = typer.Typer(add_completion=False)
            settings = getattr(module, "CONTEXT", None)
            commands.command(self.name, context_settings=settings)(getattr(module, str(self.name)))
        command = cast("TyperCommand | TyperGroup", get_command(commands))
        command.name = self.name
        return command


class LazyGroup(TyperGroup):
    """The commands, not imported yet."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: LazyCommand(name, help=words) for name, words in COMMANDS.items()}

    def load(self) -> TyperGroup:
        """Import all commands."""
        self.commands = {name: LazyCommand(name).load() for name in COMMANDS}
        return self


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


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
