"""`cdfl verify`: is everything that is stored what it should be?"""

from typing import Annotated

import typer

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
    typer.echo(
        f"from the snapshot of epoch {result.first} to epoch {result.last}: {result.entries} entries replayed, "
        f"{result.snapshots} later snapshots and {result.replies} replies compared"
    )
    for finding in result.findings:
        typer.echo(finding)
    typer.echo("everything is as it should be" if not result.findings else f"{len(result.findings)} findings")
    if result.findings:
        raise typer.Exit(1)
