"""Tables that fit 80 columns: names are wrapped if they must be, and never cut."""

import json
from collections.abc import Iterable
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table


def make_table(name: str, *numbers: str, title: str | None = None) -> Table:
    """Return a table whose first column holds names and whose others hold short values, to the right.

    A column that ends with `...` holds words, which may be wrapped, too.
    """
    table = Table(title=None if title is None else escape(title), title_justify="left", box=SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.add_column(name, overflow="fold", min_width=min(12, len(name)))
    for column in numbers:
        if column.endswith("..."):
            table.add_column(column.removesuffix("..."), overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def show(values: Any, table: RenderableType | None, *, as_json: bool, notes: Iterable[str] = ()) -> None:
    """Print values as JSON, or a table and notes below it."""
    if as_json:
        typer.echo(json.dumps(values, indent=2))
        return
    console = Console(highlight=False)
    if table is not None:
        console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True, markup=False)
