"""Cluster models in files: safetensors with the network's own names of tensors, and programs for devices."""

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cdfl.core import Layout, load
from cdfl.wire import DTYPES, DType, decode_model, encode_model

FORMATS = ("safetensors", "torch", "onnx")
ABOUT = "clusters.json"


def find_dtype(name: str) -> DType:
    """Return a number format by its name."""
    for known in DTYPES:
        if name == known:
            return known
    raise ValueError(f"dtype is {name!r}; expected one of {', '.join(DTYPES)}")


def check_empty(folder: Path) -> None:
    """Raise ValueError unless a folder is new or empty."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise ValueError(f"{place} is not a folder; name a new or empty one")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; name a new folder")


def write_clusters(
    folder: Path, models: Sequence[Tensor], layout: Layout, about: Mapping[str, Any], dtype: str = "float32"
) -> list[Path]:
    """Write cluster-0.safetensors, ... and clusters.json, which describes them."""
    kind = find_dtype(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, model in enumerate(models):
        path = folder / f"cluster-{number}.safetensors"
        body = encode_model(model.float().cpu(), layout, kind)
        path.write_bytes(body)
        files.append({"file": path.name, "sha256": hashlib.sha256(body).hexdigest()})
    described = {
        **about,
        "dtype": dtype,
        "clusters": files,
        "tensors": {name: list(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)},
        "num_parameters": layout.num_parameters,
    }
    (folder / ABOUT).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    return [*(folder / entry["file"] for entry in files), folder / ABOUT]


def read_clusters(folder: Path) -> tuple[Layout, list[Tensor], dict[str, Any]]:
    """Read what `write_clusters` wrote: the layout, the models (P,), and what is known about them."""
    if not (folder / ABOUT).is_file():
        raise ValueError(f"{folder} holds no cluster models; expected {ABOUT} and the files it names")
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    shapes = tuple(torch.Size(shape) for shape in about["tensors"].values())
    layout = Layout(tuple(about["tensors"]), shapes, about["num_parameters"], sum(shape.numel() for shape in shapes))
    models = []
    for entry in about["clusters"]:
        body = (folder / entry["file"]).read_bytes()
        if hashlib.sha256(body).hexdigest() != entry["sha256"]:
            raise ValueError(f"{folder / entry['file']} was changed after it was written; export the models again")
        models.append(decode_model(body, layout))
    return layout, models, about


def module_of(network: nn.Module, vector: Tensor) -> nn.Module:
    """Return a copy of a network that holds a model (P,), in evaluation mode."""
    import copy

    module = copy.deepcopy(network).float().cpu()
    load(module, vector.float().cpu())
    return module.eval()


def write_program(path: Path, module: nn.Module, inputs: Tensor, kind: str) -> Path:
    """Write a network as a program that runs without its Python code: "torch" (.pt2) or "onnx" (.onnx).

    It takes any number of samples like `inputs` (n, ...), which must be two or more.
    """
    batch = {0: torch.export.Dim("batch")}
    with torch.no_grad():
        if kind == "torch":
            program = torch.export.export(module, (inputs,), dynamic_shapes=(batch,))
            target = path.with_suffix(".pt2")
            torch.export.save(program, target)
            return target
        try:
            import onnxscript  # noqa: F401
        except ModuleNotFoundError:
            raise ValueError("the format onnx needs two more packages: pip install 'cdfl[onnx]'") from None
        target = path.with_suffix(".onnx")
        with redirect_stdout(StringIO()), _quiet():  # it reports every step
            torch.onnx.export(
                module, (inputs,), target, dynamo=True, dynamic_shapes=(batch,), external_data=False, verbose=False
            )
        return target


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch's exporter says of itself: packages that it could use, and its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
