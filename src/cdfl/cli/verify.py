"""`cdfl verify`: is everything that is stored what it should be?"""

from typing import TYPE_CHECKING, Annotated

import typer

from cdfl.cli.options import counted
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, StorePlace, open_store, progress_bar, refuse_store

if TYPE_CHECKING:  # needs the extra `server`
    from cdfl.server.verify import Verified


def verify(
    store: StorePlace = DEFAULT_STORE,
    blobs: BlobsPlace = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="By how much estimates may differ: for a server that ran on other hardware.")
    ] = 0.0,
) -> None:
    """Read all snapshots, and replay the journal from the oldest it is complete for: every bit is compared on the way.

    Works beside a running server. Exit code 1: something is not as it should be.
    """
    with refuse_store(), open_store(store, blobs, own=False) as opened, progress_bar("replaying") as progress:
        from cdfl.server.verify import verify as replayed

        result = replayed(opened, progress, tolerance)
    typer.echo(f"{counted(result.read, 'snapshot')} read; {_replayed(result)}")
    for finding in result.findings:
        typer.echo(finding)
    typer.echo("all of that is as it should be" if not result.findings else counted(len(result.findings), "finding"))
    if result.findings:
        raise typer.Exit(1)


def _replayed(result: "Verified") -> str:
    if result.last == result.first:
        return f"nothing was replayed: no entry follows on epoch {result.first}, since which the journal is complete"
    entries = counted(result.entries, "entry", "entries")
    snapshots, replies = counted(result.snapshots, "later snapshot"), counted(result.replies, "reply", "replies")
    return f"{entries} replayed from epoch {result.first} to {result.last}, {snapshots} and {replies} compared"
