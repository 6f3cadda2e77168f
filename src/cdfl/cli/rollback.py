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
    healthy: Annotated[bool, flag("--healthy", "Take the newest snapshot whose clusters are as good as ever.")] = False,
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
    json_: Json = False,
) -> None:
    """Return to a snapshot: everything after it is deleted. The server must be stopped.

    The next upload of a client that was sent a later model is refused; the client then fetches a new model.
    """
    with refuse_store(), open_store(store, blobs, own=healthy or epoch is not None) as opened:
        opened.layout()  # refuses an empty store
        if healthy and epoch is not None:
            raise ValueError("--healthy chooses the epoch; omit one of them")
        epoch = opened.healthy_epoch() if healthy else epoch
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
    kept = opened.snapshots()
    fit = opened.healthy_epochs()
    for snapshot in kept:
        fault = opened.fault_of(snapshot)
        if fault and snapshot not in opened.snapshots():  # a running server has deleted it meanwhile
            continue
        taken = time.strftime("%Y-%m-%d %H:%M", time.localtime(snapshot.created))
        ago = counted(newest - snapshot.epoch, "upload")
        is_healthy = snapshot.epoch in fit
        values.append(
            {
                "epoch": snapshot.epoch,
                "created": snapshot.created,
                "mean_loss": snapshot.mean_loss,
                "healthy": is_healthy,
                "fault": fault,
            }
        )
        health = f"mean loss {snapshot.mean_loss:.4g}, {'healthy' if is_healthy else 'worse than the best'}"
        words = f"cannot be read: {fault}" if fault else health
        notes.append(f"  epoch {snapshot.epoch}, taken {taken}, {ago} ago; {words}")
    show({"epoch": newest, "snapshots": values}, None, as_json=as_json, notes=notes)
