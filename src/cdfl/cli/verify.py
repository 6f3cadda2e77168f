"""`cdfl verify`: check what is stored."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cdfl.cli.options import Json, counted
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, StorePlace, open_store, progress_bar, refuse_store
from cdfl.cli.tables import show

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.server.verify import Verified


def verify(
    store: StorePlace = DEFAULT_STORE,
    blobs: BlobsPlace = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="How far numbers may differ, for a server that ran on other hardware.")
    ] = 0.0,
    json_: Json = False,
) -> None:
    """Read all snapshots, replay the journal from the oldest one possible, and compare every bit.

    Works beside a running server. Exit code 1: something is wrong.
    """
    with refuse_store(), open_store(store, blobs, own=False) as opened, progress_bar("replaying") as progress:
        from cdfl.server.verify import verify as replayed

        result = replayed(opened, progress, tolerance)
    verdict = "nothing is wrong" if not result.findings else counted(len(result.findings), "finding")
    notes = [f"{counted(result.read, 'snapshot')} read; {_replayed(result)}", *result.findings, verdict]
    show(asdict(result), None, as_json=json_, notes=notes)
    if result.findings:
        raise typer.Exit(1)


def _replayed(result: "Verified") -> str:
    if result.last == result.first:
        return f"nothing was replayed: there is no complete entry after epoch {result.first}"
    entries = counted(result.entries, "entry", "entries")
    snapshots, replies = counted(result.snapshots, "later snapshot"), counted(result.replies, "reply", "replies")
    return f"{entries} replayed from epoch {result.first} to {result.last}, {snapshots} and {replies} compared"
