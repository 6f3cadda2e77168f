"""`cdfl verify`: is everything that is stored what it should be?"""

from typing import Annotated

import typer

from cdfl.cli.options import counted
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, StorePlace, open_store, progress_bar, refuse_store


def verify(
    store: StorePlace = DEFAULT_STORE,
    blobs: BlobsPlace = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="By how much estimates may differ: for a server that ran on other hardware.")
    ] = 0.0,
) -> None:
    """Replay the journal from the oldest snapshot it is complete for; compare everything on the way, bit for bit.

    Works beside a running server. Exit code 1: something is not as it should be.
    """
    with refuse_store(), open_store(store, blobs, own=False) as opened, progress_bar("replaying") as progress:
        from cdfl.server.verify import verify as replayed

        result = replayed(opened, progress, tolerance)
    entries = counted(result.entries, "entry", "entries")
    snapshots, replies = counted(result.snapshots, "later snapshot"), counted(result.replies, "reply", "replies")
    typer.echo(
        f"from the snapshot of epoch {result.first} to epoch {result.last}: {entries} replayed, "
        f"{snapshots} and {replies} compared"
    )
    for finding in result.findings:
        typer.echo(finding)
    typer.echo("everything is as it should be" if not result.findings else counted(len(result.findings), "finding"))
    if result.findings:
        raise typer.Exit(1)
