"""`cdfl forget`: remove a client from the store, beside a running server or without one."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from cdfl.cli.options import Json
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, StorePlace, open_store, progress_bar, refuse_store
from cdfl.cli.tables import show
from cdfl.server.store_errors import StoreBusy
from cdfl.wire import check_client_id

if TYPE_CHECKING:
    from cdfl.server.store import Store

POLL_SECONDS = 0.2
TRY_ALONE_SECONDS = 2.0  # the server may have stopped meanwhile


def forget(
    client_id: Annotated[str, typer.Argument(metavar="CLIENT")],
    store: StorePlace = DEFAULT_STORE,
    blobs: BlobsPlace = None,
    json_: Json = False,
) -> None:
    """Delete everything that is stored of a client: uploads, replies, mixtures, tokens, its name in the journal.

    What the cluster models learned from its uploads stays in them. Backups are not changed.
    """
    with refuse_store():
        check_client_id(client_id)
        try:
            found = _alone(store, blobs, client_id)
        except StoreBusy:
            with open_store(store, blobs, own=False) as opened:
                found = _ask(opened, store, blobs, client_id)
    note = f"{client_id} is forgotten" if found else f"nothing is stored of {client_id}"
    show({"client_id": client_id, "found": found}, None, as_json=json_, notes=[note])


def _alone(store: str, blobs: str | None, client_id: str) -> bool:
    with open_store(store, blobs, own=True) as opened, progress_bar("replaying the journal") as progress:
        recovered = opened.recover(progress)
        return opened.forget(client_id, recovered.state if recovered else None)


def _ask(opened: "Store", store: str, blobs: str | None, client_id: str) -> bool:
    """Ask the running server and wait for it; forget the client here if the server has stopped."""
    if not opened.knows(client_id):
        return False
    opened.ask_to_forget(client_id)
    typer.echo("a server is running: it was asked, waiting for it (after Ctrl-C it still does it)", err=True)
    alone_next = time.monotonic() + TRY_ALONE_SECONDS
    while client_id in opened.asked_to_forget():
        time.sleep(POLL_SECONDS)
        if time.monotonic() > alone_next:
            try:
                return _alone(store, blobs, client_id)
            except StoreBusy:
                alone_next = time.monotonic() + TRY_ALONE_SECONDS
    return True
