"""`cdfl backup`: copy a store, also while its server runs."""

from pathlib import Path
from typing import Annotated

import typer

from cdfl.cli.options import Json, counted
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, StorePlace, open_store, progress_bar, refuse_store
from cdfl.cli.tables import show


def backup(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="New or empty folder for the copy.")],
    store: StorePlace = DEFAULT_STORE,
    blobs: BlobsPlace = None,
    json_: Json = False,
) -> None:
    """Copy the database and all models as of one moment. Works beside a running server.

    The copy is a store like any other: `cdfl verify --store FOLDER` checks it, `cdfl serve --store FOLDER` goes on.
    """
    with refuse_store(), open_store(store, blobs, own=False) as opened, progress_bar("copying models") as progress:
        from cdfl.server.backup import backup as copy

        opened.layout()  # refuses an empty store
        made = copy(opened, out, progress)
    note = f"copied epoch {made.epoch} to {out}: {counted(made.entries, 'entry', 'entries')}, {made.blobs} files"
    about = {"folder": str(out), "epoch": made.epoch, "entries": made.entries, "files": made.blobs}
    show(about, None, as_json=json_, notes=[note])
