"""Options and helpers that several commands share. Imports nothing heavy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cdfl.user_code import is_missed_by_cdfl


def flag(name: str, words: str) -> Any:
    """Return an option without a value. Typer alone would show a type for it."""
    return typer.Option(name, help=words, metavar="")


DeviceName = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, flag("--json", "Print JSON for programs, and nothing else on stdout.")]
DataDir = Annotated[
    Path | None, typer.Option(envvar="CDFL_DATA", help="Folder with the datasets; default: ~/.cache/cdfl.")
]


def note(line: str) -> None:
    """Write a line to stderr."""
    typer.echo(line, err=True)


def counted(number: int, thing: str, things: str | None = None) -> str:
    """Return a number with its noun in singular or plural.

    >>> counted(1, "upload"), counted(2, "upload"), counted(0, "entry", "entries")
    ('1 upload', '2 uploads', '0 entries')
    """
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


@contextmanager
def exit_on(*kinds: type[Exception], needs: str = "a simulation", extra: str = "sim") -> Iterator[None]:
    """Turn errors of these kinds into one line and exit code 2, and Ctrl-C into exit code 130."""
    try:
        yield
    except ModuleNotFoundError as error:
        is_extra = error.name and is_missed_by_cdfl(error)  # without a name, the message already says what to install
        remedy = f"; {needs} needs: pip install 'cdfl[{extra}]'" if is_extra else ""
        typer.secho(f"cdfl: {error}{remedy}", err=True, fg="red")
        raise typer.Exit(2) from None
    except kinds as error:
        typer.secho(f"cdfl: {error}", err=True, fg="red")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.secho("cdfl: stopped", err=True)
        raise typer.Exit(130) from None
