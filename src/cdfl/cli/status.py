"""`cdfl status`: a server or a store in a few lines."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdfl.cli.options import Json, counted
from cdfl.cli.remote import Certificate, StartingError, Token, is_url, remote
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, open_store, refuse_store
from cdfl.cli.tables import make_table, show

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.server.store import Store

Place = Annotated[
    str, typer.Argument(metavar="URL|STORE", help="Address of a server, folder of a store, or URL of its database.")
]


def status(
    place: Place = DEFAULT_STORE,
    token: Token = None,
    verify: Certificate = None,
    blobs: BlobsPlace = None,
    json_: Json = False,
) -> None:
    """Show the epoch, the clusters, and how many clients and uploads there are. Works beside a running server."""
    with refuse_store():
        if is_url(place):
            with remote(place, token, verify) as server:
                try:
                    found = server.get("/v1/status")
                except StartingError as starting:
                    show(
                        {"state": "starting", "detail": str(starting)},
                        None,
                        as_json=json_,
                        notes=[f"{place}: {starting}"],
                    )
                    return
            values = {"state": "serving"} | found
        else:
            with open_store(place, blobs, own=False) as opened:
                values = _of_store(opened)
    names = values.get("clusters") or [f"cluster {number}" for number in range(values["num_clusters"])]
    table = make_table("cluster", "loss", "last moved")
    for name, loss, moved in zip(names, values["cluster_losses"], values["cluster_epochs"], strict=True):
        table.add_row(name, "-" if loss is None else f"{loss:.4f}", f"epoch {moved}")
    counts = f"{counted(values['uploads'], 'upload')}, {counted(values['clients'], 'client')}"
    notes = [f"{place}: epoch {values['epoch']}, {counts}"]
    if "snapshots" in values:
        last = values["last_upload"]
        notes.append("no upload yet" if last is None else f"last upload {_when(last)}")
        notes.append(f"snapshots of epochs {', '.join(map(str, values['snapshots']))}")
        notes.append(f"{counted(values['tokens'], 'valid token')}")
    show(values, table, as_json=json_, notes=notes)


def _of_store(opened: "Store") -> dict[str, Any]:
    """Describe a store without replaying its journal: the newest entry and snapshot say enough."""
    from cdfl.server.auth import Tokens

    layout, snapshots = opened.layout(), opened.snapshots()
    newest, number = snapshots[-1], opened.newest_number()
    last = next(iter(opened.entries(number - 1, 1)), None) if number else None
    losses = list(last.cluster_losses) if last else newest.state["cluster_losses"]
    moved = list(newest.state["cluster_epochs"])
    for entry in opened.all_entries(newest.epoch):
        moved = [
            entry.epoch if rate > 0 else old for rate, old in zip(entry.rates or [0] * len(moved), moved, strict=True)
        ]
    return {
        "state": "stored",
        "epoch": opened.newest_epoch(),
        "num_clusters": len(newest.models),
        "cluster_losses": losses,
        "cluster_epochs": moved,
        "clients": opened.num_clients(),
        "uploads": number,
        "num_parameters": layout.num_parameters,
        "last_upload": None if last is None else last.received,
        "snapshots": [snapshot.epoch for snapshot in snapshots],
        "tokens": sum(token.revoked is None for token in Tokens(opened.database).all()),
    }


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
