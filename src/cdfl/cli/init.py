"""`cdfl init`: write an example problem."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from cdfl.cli.options import exit_on

EXAMPLE = Path(__file__).with_name("example_problem.py")


def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("setup_cdfl.py"),
) -> None:
    """Write an example problem that runs: handwritten digits in four rotations. Change it for your own."""
    with exit_on(ValueError, OSError):
        if file.exists():
            raise ValueError(f"{file} exists; name another file")
        file.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    pasted = shlex.quote(str(file))
    typer.echo(f"wrote {file}; now try:\n  cdfl run {pasted}\n  cdfl serve {pasted} --open")
    typer.echo(f"  cdfl join http://127.0.0.1:8000 --client-id car-7 --setup {pasted} --watch")
