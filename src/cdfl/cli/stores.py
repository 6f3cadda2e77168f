"""What the commands on a store share: its place, opening it, a progress bar."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cdfl.cli.options import exit_on
from cdfl.server.store_errors import StoreError
from cdfl.wire import WireError

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.server.auth import Tokens
    from cdfl.server.store import Store

StorePlace = Annotated[
    str,
    typer.Option(
        "--store", envvar="CDFL_STORE", help="Folder of the store, or URL of its database: postgresql://USER@HOST/NAME."
    ),
]
BlobsPlace = Annotated[
    str | None,
    typer.Option(
        "--blobs",
        envvar="CDFL_BLOBS",
        help="Where the models are kept: a folder, or any fsspec URL. Default: in the folder of the store.",
    ),
]
DEFAULT_STORE = "cdfl-store"


def refuse_store() -> AbstractContextManager[None]:
    """Turn errors of a store, and of the request, into one line."""
    return exit_on(StoreError, WireError, ValueError, OSError, needs="a server", extra="server")


def open_store(place: str, blobs: str | None, *, own: bool) -> "Store":
    """Open a store; refuse to create one."""
    from cdfl.server.store import Store

    _check_exists(place)
    return Store.open(place, blobs, own=own)


@contextmanager
def open_tokens(place: str, *, new: bool = False) -> "Iterator[Tokens]":
    """Open the tokens of a store; `new=True` creates the store if needed."""
    from cdfl.server.auth import Tokens
    from cdfl.server.database import Database, database_url

    if not new:
        _check_exists(place)
    database = Database.open(database_url(place), own=False)
    try:
        yield Tokens(database)
    finally:
        database.close()


def store_exists(place: str) -> bool:
    """Return whether there is a store; none is created."""
    from cdfl.server.database import Database, database_url

    return Database.exists(database_url(place))


def _check_exists(place: str) -> None:
    from cdfl.server.database import without_password

    if not store_exists(place):
        raise StoreError(
            f"there is no store in {without_password(place)}; name it with --store, or begin one with `cdfl serve`"
        )


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr; call what it yields with (done, total)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
