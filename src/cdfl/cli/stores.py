"""What the commands on a server's store share: where it is, opening it, telling how far a replay is."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cdfl.cli.options import refuse
from cdfl.server.journal import StoreError
from cdfl.wire import WireError

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.server.store import Store
    from cdfl.server.tokens import Tokens

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
    """Turn what can be wrong with a store, or with what was asked of it, into one line."""
    return refuse(StoreError, WireError, ValueError, OSError, needs="a server", extra="server")


def open_store(place: str, blobs: str | None, *, own: bool) -> "Store":
    """Open the store of a command; one that does not exist is not made."""
    from cdfl.server.store import Store

    _check_exists(place)
    return Store.open(place, blobs, own=own)


@contextmanager
def open_tokens(place: str, *, new: bool = False) -> "Iterator[Tokens]":
    """Open the tokens of a store; only where `new` is said, of one that does not exist yet."""
    from cdfl.server.database import Database
    from cdfl.server.places import database_url
    from cdfl.server.tokens import Tokens

    if not new:
        _check_exists(place)
    database = Database.open(database_url(place), own=False)
    try:
        yield Tokens(database)
    finally:
        database.close()


def store_exists(place: str) -> bool:
    """Is there a store? Asking makes none."""
    from cdfl.server.database import Database
    from cdfl.server.places import database_url

    return Database.exists(database_url(place))


def _check_exists(place: str) -> None:
    from cdfl.server.places import shown

    if not store_exists(place):
        raise StoreError(f"there is no store in {shown(place)}; name it with --store, or begin one with `cdfl serve`")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for something that may take a while; it is told (done, total)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
