"""A bookmark on disk: numbers as JSON, tensors as safetensors; nothing that could run code when it is read."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cdfl.algorithms import Assignment
from cdfl.core import Reply
from cdfl.sim.simulation import Bookmark, Client, Simulation, Trained

NUMBERS, TENSORS = "checkpoint.json", "checkpoint.safetensors"


def save(folder: Path, bookmark: Bookmark, start: Tensor) -> None:
    """Write a bookmark and the models its run began with; the one before it stays whole until this one is."""
    tensors: dict[str, Tensor] = {"start": start}
    numbers = {
        "turns": bookmark.turns,
        "attempts": bookmark.attempts,
        "told": bookmark.told,
        "state": _split(bookmark.state, "state", tensors),
        "clients": {
            str(number): _split(client, f"clients.{number}", tensors, leave=("draw",))
            for number, client in bookmark.clients.items()
        },
    }
    # Views of one tensor would be written once each; safetensors refuses them, so each is made its own.
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / (TENSORS + ".new"))
    (folder / (NUMBERS + ".new")).write_text(json.dumps(numbers), encoding="utf-8")
    (folder / (TENSORS + ".new")).replace(folder / TENSORS)
    (folder / (NUMBERS + ".new")).replace(folder / NUMBERS)


def load(folder: Path, simulation: Simulation) -> Bookmark:
    """Read a bookmark into a simulation that was built like the one that wrote it, and has not begun."""
    task = simulation.task
    tensors = load_file(folder / TENSORS, device=str(task.device))
    numbers = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
    task.start = tensors["start"]
    begun = simulation.algorithm.initial(task.start, simulation.evaluate, task.layout.num_parameters)
    state = replace(begun, **_joined(numbers["state"], "state", tensors))
    clients = {}
    for text, values in numbers["clients"].items():
        held = _joined(values, f"clients.{text}", tensors)
        held["draw"] = task.federation.draw(int(text), held["looks"])
        held["state"] = None if held["state"] is None else replace(begun, **held["state"])
        held["memory"] = tuple(held["memory"])
        held["reply"] = Reply(**held["reply"])
        held["assignment"] = Assignment(**held["assignment"])
        held["trained"] = None if held["trained"] is None else Trained(**held["trained"])
        clients[int(text)] = Client(**held)
    return Bookmark(state, clients, numbers["turns"], numbers["attempts"], numbers["told"])


def exists(folder: Path) -> bool:
    """Can the run in this folder be resumed?"""
    return (folder / NUMBERS).exists() and (folder / TENSORS).exists()


def remove(folder: Path) -> None:
    """A run is over: nothing is left to resume."""
    for name in (NUMBERS, TENSORS):
        (folder / name).unlink(missing_ok=True)


def _split(value: Any, name: str, tensors: dict[str, Tensor], leave: tuple[str, ...] = ()) -> Any:
    """What of a value is numbers; its tensors are put aside under their path."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if is_dataclass(value):
        return {
            field.name: _split(getattr(value, field.name), f"{name}.{field.name}", tensors)
            for field in fields(value)
            if field.name not in leave
        }
    return value


def _joined(values: Mapping[str, Any], name: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Put the tensors back."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict):
            value = tensors[value["tensor"]] if set(value) == {"tensor"} else _joined(value, f"{name}.{key}", tensors)
        found[key] = value.cpu() if isinstance(value, Tensor) and value.dtype != torch.float32 else value
    return found
