"""A bookmark on disk: one safetensors file, its numbers as JSON in the header; reading it can run no code."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cdfl.algorithms import Assignment
from cdfl.core import ClientMemory, Measures, Reply, Verdict
from cdfl.sim.simulation import Bookmark, Client, Simulation, Trained

FILE = "checkpoint.safetensors"


def save(folder: Path, bookmark: Bookmark, start: Tensor) -> None:
    """Write a bookmark and the models its run began with; the one before it stays whole until this one is."""
    tensors = _Names({"start": start})
    numbers = {
        "ticks": bookmark.ticks,
        "attempts": bookmark.attempts,
        "told": bookmark.told,
        "state": _split(bookmark.state, "state", tensors),
        "clients": {
            str(number): _split(client, f"clients.{number}", tensors, leave=("drawn", "ahead"))
            for number, client in bookmark.clients.items()
        },
    }
    # safetensors refuses views that share memory, so each is made its own.
    own = {name: tensor.contiguous().clone() for name, tensor in tensors.held.items()}
    new = folder / (FILE + ".new")
    try:
        save_file(own, new, metadata={"numbers": json.dumps(numbers)})
    except SafetensorError as error:  # what the disk says, in another kind of error
        new.unlink(missing_ok=True)
        raise OSError(f"the checkpoint cannot be kept: {error}") from error
    new.replace(folder / FILE)


def load(folder: Path, simulation: Simulation) -> Bookmark:
    """Read a bookmark into a simulation that was built like the one that wrote it, and has not begun."""
    task = simulation.task
    with _opened(folder, str(task.device)) as (file, numbers):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    task.start = tensors["start"]
    begun = simulation.algorithm.initial(task.start, simulation.evaluate, task.layout.num_parameters)
    state = replace(begun, **_joined(numbers["state"], "state", tensors))
    clients = {}
    for text, values in numbers["clients"].items():
        held = _joined(values, f"clients.{text}", tensors)
        held["drawn"] = task.drawn(int(text), held["turns"])
        held["state"] = None if held["state"] is None else replace(begun, **held["state"])
        held["memory"] = tuple(held["memory"])
        reply, assignment = held["reply"], held["assignment"]
        reply |= {"measures": Measures(**reply["measures"]), "verdict": Verdict(**_tuples(reply["verdict"]))}
        assignment["client"] = ClientMemory(**_tuples(assignment["client"]))
        held["reply"], held["assignment"] = Reply(**reply), Assignment(**assignment)
        held["trained"] = None if held["trained"] is None else Trained(**held["trained"])
        clients[int(text)] = Client(**held)
    return Bookmark(state, clients, numbers["ticks"], numbers["attempts"], numbers["told"])


def exists(folder: Path) -> bool:
    """Can the run in this folder be resumed?"""
    return (folder / FILE).exists()


def num_told(folder: Path) -> int:
    """How many events of its run a checkpoint goes on after; those that were told later will be told again."""
    with _opened(folder) as (_, numbers):
        told: int = numbers["told"]
    return told


def remove(folder: Path) -> None:
    """A run is over: nothing is left to resume."""
    (folder / FILE).unlink(missing_ok=True)


@contextmanager
def _opened(folder: Path, device: str = "cpu") -> Iterator[tuple[Any, dict[str, Any]]]:
    """The file, and the numbers in its header."""
    try:
        with safe_open(folder / FILE, framework="pt", device=device) as file:
            yield file, json.loads(file.metadata()["numbers"])
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{folder / FILE} is damaged ({error}); restore it, or delete it and the run begins anew"
        ) from error


class _Names:
    """Tensors under their names; one that is met again, as clients share what they were sent, keeps its first."""

    def __init__(self, held: dict[str, Tensor]) -> None:
        self.held = held
        self._known = {id(tensor): name for name, tensor in held.items()}

    def add(self, name: str, tensor: Tensor) -> str:
        known = self._known.setdefault(id(tensor), name)
        self.held[known] = tensor
        return known


def _split(value: Any, name: str, tensors: _Names, leave: tuple[str, ...] = ()) -> Any:
    """What of a value is numbers; its tensors are put aside under their path."""
    if isinstance(value, Tensor):
        return {"tensor": tensors.add(name, value)}
    if isinstance(value, Measures | Verdict | ClientMemory):
        return {own: _split(part, f"{name}.{own}", tensors) for own, part in value._asdict().items()}
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


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Turn JSON's lists back into tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
