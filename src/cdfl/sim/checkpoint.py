"""Save and load a bookmark as one safetensors file with numbers as JSON in its header; loading runs no code."""

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
    """Write a bookmark and the models that its run started from; the old file is replaced in one step."""
    tensors = _Names({"start": start})
    numbers = {
        "ticks": bookmark.ticks,
        "attempts": bookmark.attempts,
        "num_events": bookmark.num_events,
        "state": _split(bookmark.state, "state", tensors),
        "clients": {
            str(number): _split(client, f"clients.{number}", tensors, leave=("turn_data", "ahead"))
            for number, client in bookmark.clients.items()
        },
    }
    # safetensors rejects tensors that share memory, so clone each.
    own = {name: tensor.contiguous().clone() for name, tensor in tensors.held.items()}
    new = folder / (FILE + ".new")
    try:
        save_file(own, new, metadata={"numbers": json.dumps(numbers)})
    except SafetensorError as error:  # an error of the disk, e.g. no space left
        new.unlink(missing_ok=True)
        raise OSError(f"the checkpoint cannot be written: {error}") from error
    new.replace(folder / FILE)


def load(folder: Path, simulation: Simulation) -> Bookmark:
    """Read a bookmark for a new simulation of the same config."""
    workload = simulation.workload
    with _opened(folder, str(workload.device)) as (file, numbers):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    workload.start = tensors["start"]
    begun = simulation.algorithm.initial(workload.start, simulation.evaluate, workload.layout.num_parameters)
    state = replace(begun, **_joined(numbers["state"], "state", tensors))
    clients = {}
    for text, values in numbers["clients"].items():
        held = _joined(values, f"clients.{text}", tensors)
        held["turn_data"] = workload.turn_data(int(text), held["turns"])
        held["state"] = None if held["state"] is None else replace(begun, **held["state"])
        held["memory"] = tuple(held["memory"])
        reply, assignment = held["reply"], held["assignment"]
        reply |= {"measures": Measures(**reply["measures"]), "verdict": Verdict(**_tuples(reply["verdict"]))}
        assignment["client"] = ClientMemory(**_tuples(assignment["client"]))
        held["reply"], held["assignment"] = Reply(**reply), Assignment(**assignment)
        held["trained"] = None if held["trained"] is None else Trained(**held["trained"])
        clients[int(text)] = Client(**held)
    return Bookmark(state, clients, numbers["ticks"], numbers["attempts"], numbers["num_events"])


def exists(folder: Path) -> bool:
    """Return whether the run in this folder can be resumed."""
    return (folder / FILE).exists()


def num_events(folder: Path) -> int:
    """Return after how many events a checkpoint continues; later events will be emitted again."""
    with _opened(folder) as (_, numbers):
        return int(numbers["num_events"])


def remove(folder: Path) -> None:
    """Delete the checkpoint of a finished run."""
    (folder / FILE).unlink(missing_ok=True)


@contextmanager
def _opened(folder: Path, device: str = "cpu") -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open the file; yield it and the numbers in its header."""
    try:
        with safe_open(folder / FILE, framework="pt", device=device) as file:
            yield file, json.loads(file.metadata()["numbers"])
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{folder / FILE} is damaged ({error}); restore it, or delete it to start a new run"
        ) from error


class _Names:
    """Tensors by name; a tensor that several clients share is stored once, under its first name."""

    def __init__(self, held: dict[str, Tensor]) -> None:
        self.held = held
        self._known = {id(tensor): name for name, tensor in held.items()}

    def add(self, name: str, tensor: Tensor) -> str:
        known = self._known.setdefault(id(tensor), name)
        self.held[known] = tensor
        return known


def _split(value: Any, name: str, tensors: _Names, leave: tuple[str, ...] = ()) -> Any:
    """Return the numbers of a value; add its tensors to `tensors` under their path."""
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
    """Return the values with their tensors."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict):
            value = tensors[value["tensor"]] if set(value) == {"tensor"} else _joined(value, f"{name}.{key}", tensors)
        found[key] = value.cpu() if isinstance(value, Tensor) and value.dtype != torch.float32 else value
    return found


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Turn JSON's lists back into tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
