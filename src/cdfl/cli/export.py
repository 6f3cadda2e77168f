"""`cdfl export`: write the cluster models of a run or of a store to files."""

from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from cdfl.cli.options import DataDir, Json
from cdfl.cli.run_folders import one_run
from cdfl.cli.stores import DEFAULT_STORE, BlobsPlace, StorePlace, open_store, progress_bar, refuse_store
from cdfl.cli.tables import show
from cdfl.core import Layout
from cdfl.model_files import FORMATS, check_empty, find_dtype, module_of, read_clusters, write_clusters, write_program
from cdfl.run_events import Finished, only


def export(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a run. Without: the models of a server's --store.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the files; it must be new or empty.")] = Path("models"),
    kind: Annotated[
        str,
        typer.Option("--format", help="safetensors; or torch (.pt2) or onnx: programs that run without Python code."),
    ] = "safetensors",
    problem: Annotated[
        str | None, typer.Option(help="The problem, for torch and onnx: its file, or a name of `cdfl scenarios`.")
    ] = None,
    epoch: Annotated[int | None, typer.Option(help="Of a snapshot of the store. Without: as they are now.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    store: StorePlace = DEFAULT_STORE,
    blobs: BlobsPlace = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Write the cluster models, one file a cluster, and clusters.json about them.

    Works beside a running server.
    """
    with refuse_store():
        if kind not in FORMATS:
            raise ValueError(f"--format is {kind!r}; expected one of {', '.join(FORMATS)}")
        find_dtype(dtype)
        check_empty(out)
        layout, models, about = _of_run(run) if run is not None else _of_store(store, blobs, epoch)
        written = write_clusters(out, models, layout, about, dtype)
        if kind != "safetensors":
            written += _programs(kind, out, layout, models, problem or about.get("scenario"), data_dir)
    note = f"wrote {len(written)} files to {out}: {', '.join(path.name for path in written)}"
    show({"files": [str(path) for path in written]}, None, as_json=json_, notes=[note])


def _of_run(run: Path) -> tuple[Layout, list[Tensor], dict[str, Any]]:
    from cdfl.sim.run_models import MODELS

    folder = one_run(run)
    if not (run / MODELS).exists():
        is_over = bool(only(folder.events(), Finished))
        raise ValueError(f"{run} has no models: {'they were deleted' if is_over else 'the run is not finished'}")
    layout, models, about = read_clusters(run / MODELS)
    return layout, models, {name: about[name] for name in ("names", "epoch", "scenario", "input_shape", "num_outputs")}


def _of_store(place: str, blobs: str | None, epoch: int | None) -> tuple[Layout, list[Tensor], dict[str, Any]]:
    from cdfl.server.export import cluster_models

    with open_store(place, blobs, own=False) as opened, progress_bar("replaying") as progress:
        return cluster_models(opened, epoch, progress)


def _programs(
    kind: str, out: Path, layout: Layout, models: list[Tensor], problem: str | None, data_dir: Path | None
) -> list[Path]:
    """Write each model as a program, which needs the network and two samples."""
    from cdfl.problems import ProblemInstance
    from cdfl.scenarios import load_problem

    if problem is None:
        raise ValueError(f"--format {kind} needs the network; name the problem with --problem")
    instance = ProblemInstance.of(load_problem(problem), data_dir=data_dir)
    if instance.layout != layout:
        raise ValueError(f"the network of {problem} is not that of these models; name their problem with --problem")
    inputs = instance.proxy_sets[0][0][:2]
    return [
        write_program(out / f"cluster-{number}", module_of(instance.model, model), inputs, kind)
        for number, model in enumerate(models)
    ]
