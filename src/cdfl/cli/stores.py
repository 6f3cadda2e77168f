"""What the commands on a store share: its place, opening it, a progress bar. The store is imported when it is used."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cdfl.cli.options import exit_on

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
STORE_FILE = "store.db"


@contextmanager
def refuse_store() -> Iterator[None]:
    """Turn errors of a store, and of the request, into one line."""
    with exit_on(ValueError, OSError, needs="a server", extra="server"):
        try:
            yield
        except (ValueError, OSError, ModuleNotFoundError):
            raise
        except Exception as error:
            from cdfl.server.store_errors import StoreError
            from cdfl.wire import WireError

            if isinstance(error, StoreError | WireError):
                raise ValueError(str(error)) from None
            raise


def open_store(place: str, blobs: str | None, *, own: bool) -> "Store":
    """Open a store; refuse to create one."""
    from cdfl.server.store import Store

    _check_exists(place)
    return Store.open(place, blobs, own=own)


@contextmanager
def open_tokens(place: str, *, new: bool = False) -> "Iterator[Tokens]":
    """Open the tokens of a store; `new=True` creates the store if needed."""
    from cdfl.server.auth import Tokens
    from cdfl.server.database import Database
    from cdfl.server.database_engine import database_url

    if not new:
        _check_exists(place)
    database = Database.open(database_url(place), own=False)
    try:
        yield Tokens(database)
    finally:
        database.close()


def store_exists(place: str) -> bool:
    """Return whether there is a store; none is created."""
    from cdfl.server.database import Database
    from cdfl.server.database_engine import database_url

    return Database.exists(database_url(place))


def check_no_run(place: str) -> None:
    """Refuse a folder of runs with a hint, unless it holds a store as well."""
    folder = Path(place)
    if (folder / STORE_FILE).exists():
        return
    hint = f"`cdfl watch {place}` and `cdfl report {place}` show it"
    if (folder / "events.jsonl").exists():
        raise ValueError(f"{place} is a run, not a store; {hint}")
    if "://" not in place and any(folder.glob("*/events.jsonl")):
        raise ValueError(f"{place} is a folder of runs, not a store; {hint}")


def check_no_store(folder: Path, hint: str) -> None:
    """Refuse the folder of a store with a hint; say what is wrong with its database if it cannot be used."""
    if not (folder / STORE_FILE).exists():
        return
    from cdfl.server.store_errors import StoreError

    try:
        is_store = store_exists(str(folder))
    except ModuleNotFoundError:  # without the extra `server`, the file's name has to do
        is_store = True
    except StoreError as error:
        raise ValueError(str(error)) from None
    if is_store:
        raise ValueError(f"{folder} is the store of a server, not a run; {hint}")


def _check_exists(place: str) -> None:
    from cdfl.server.database_engine import without_password
    from cdfl.server.store_errors import StoreError

    check_no_run(place)
    if not store_exists(place):
        named = without_password(place)
        raise StoreError(f"there is no store in {named}; name its folder or database, or begin one with `cdfl serve`")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr if it is a terminal; call what it yields with (done, total)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
