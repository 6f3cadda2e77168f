"""`cdfl rollback`: return to a snapshot."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from cdfl.cli.options import Json, counted, flag
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, StorePlace, open_store, refuse_store
from cdfl.cli.tables import show

if TYPE_CHECKING:
    from cdfl.server.store import Store


def rollback(
    epoch: Annotated[int | None, typer.Argument(help="Of a snapshot. Without: list them.")] = None,
    store: StorePlace = DEFAULT_STORE,
    blobs: BlobsPlace = None,
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
    json_: Json = False,
) -> None:
    """Return to a snapshot: everything after it is deleted. The server must be stopped.

    The next upload of a client that was sent a later model is refused; the client then fetches a new model.
    """
    with refuse_store(), open_store(store, blobs, own=epoch is not None) as opened:
        opened.layout()  # refuses an empty store
        if epoch is None:
            _list(opened, as_json=json_)
            return
        uploads, clients = opened.count_after(epoch)
        typer.echo(
            f"a rollback to epoch {epoch} deletes {counted(uploads, 'upload')} of {counted(clients, 'client')}, "
            "for good; `cdfl export` writes the models of today to files",
            err=json_,
        )
        if not yes and not typer.confirm("go back?"):
            typer.echo("nothing was changed")
            raise typer.Exit(1)
        opened.rollback(epoch)
    show({"epoch": epoch}, None, as_json=json_, notes=[f"the store is at epoch {epoch}"])


def _list(opened: "Store", *, as_json: bool) -> None:
    newest, values = opened.newest_epoch(), []
    notes = [f"the store is at epoch {newest}; there are snapshots of"]
    for snapshot in opened.snapshots():
        fault = opened.fault_of(snapshot)
        if fault and snapshot not in opened.snapshots():  # a running server has deleted it meanwhile
            continue
        taken = time.strftime("%Y-%m-%d %H:%M", time.localtime(snapshot.created))
        ago = counted(newest - snapshot.epoch, "upload")
        values.append({"epoch": snapshot.epoch, "created": snapshot.created, "fault": fault})
        fault_words = f"; cannot be read: {fault}" if fault else ""
        notes.append(f"  epoch {snapshot.epoch}, taken {taken}, {ago} ago{fault_words}")
    show({"epoch": newest, "snapshots": values}, None, as_json=as_json, notes=notes)
