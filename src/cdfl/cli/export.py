"""`cdfl export`: write the cluster models to files."""

from pathlib import Path
from typing import Annotated

import typer

from cdfl.cli.options import Json
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, StorePlace, open_store, progress_bar, refuse_store
from cdfl.cli.tables import show


def export(
    out: Annotated[Path, typer.Option(help="Folder for the files; it must be new or empty.")],
    epoch: Annotated[int | None, typer.Option(help="Of a snapshot. Without: the models as they are now.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    store: StorePlace = DEFAULT_STORE,
    blobs: BlobsPlace = None,
    json_: Json = False,
) -> None:
    """Write the cluster models as safetensors, one file a cluster, and clusters.json about them.

    Works beside a running server.
    """
    with refuse_store(), open_store(store, blobs, own=False) as opened, progress_bar("replaying") as progress:
        from cdfl.server.export import export as write

        written = write(opened, out, epoch, dtype, progress)
    note = f"wrote {len(written)} files to {out}: {', '.join(path.name for path in written)}"
    show({"files": [str(path) for path in written]}, None, as_json=json_, notes=[note])
