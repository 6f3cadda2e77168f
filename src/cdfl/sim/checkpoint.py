"""Save and load a bookmark as one safetensors file; loading runs no code.

The file has the models that the run started from, records of the server's state and of what clients hold, and numbers
as JSON. Records of sleeping clients are copied from file to file, so a large population needs little memory.
"""

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cdfl.sim.client_spill import Kept
from cdfl.sim.population import Client, Population, Prepared
from cdfl.sim.simulation import Bookmark, Simulation

FILE = "checkpoint.safetensors"
HEADER = 1024  # bytes of the file before its data
TYPES = {torch.float32: "F32", torch.float64: "F64"}
AHEAD = ("assignment", "uploads", "mixture", "trained")  # the fields of `Prepared` that cannot be computed again


def save(folder: Path, bookmark: Bookmark, start: Tensor) -> None:
    """Write a bookmark and the models that its run started from; the old file is replaced in one step."""
    new = folder / (FILE + ".new")
    try:
        with new.open("wb") as file:
            _write(file, bookmark, start.detach().cpu().contiguous())
    except OSError as error:  # e.g. no space left
        new.unlink(missing_ok=True)
        raise OSError(f"the checkpoint cannot be written: {error}") from error
    new.replace(folder / FILE)


def load(folder: Path, simulation: Simulation) -> Bookmark:
    """Read a bookmark for a new simulation of the same config."""
    instance, store = simulation.instance, simulation.store
    with _opened(folder) as (file, numbers):
        records = file.get_slice("records")

        def record(place: list[int]) -> bytes:
            data: bytes = records[place[0] : place[1]].numpy().tobytes()
            return data

        instance.start = file.get_tensor("start").to(instance.device)
        simulation.initial_state(instance.start)
        state = store.serializer.loads(record(numbers["state"]))
        kept = [store.keep_record(record(place)) for place in numbers["kept"]]
        found: dict[int, Client] = {}
        for about in numbers["clients"]:
            client = Client(kept[about["kept"]], about["turns"], about["updates"], tuple(about["memory"]))
            found |= dict.fromkeys(about["numbers"], client)
            if about["prepared"] is not None:
                (number,) = about["numbers"]
                ahead = store.serializer.loads(record(about["prepared"]))
                turn_data = instance.turn_data(number, client.turns)
                prepared = Prepared(client.kept.load(), turn_data, **ahead)
                found[number] = Client(client.kept, client.turns, client.updates, client.memory, prepared)
        moment = Population(found).mark()
    return Bookmark(state, moment, store, numbers["ticks"], numbers["attempts"], numbers["num_events"])


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


def _write(file: BinaryIO, bookmark: Bookmark, start: Tensor) -> None:
    """Write the data, then the header, which says where they are."""
    file.write(bytes(HEADER))
    file.write(start.numpy().tobytes())
    begin = file.tell()

    def add(record: bytes) -> list[int]:
        file.write(record)
        return [file.tell() - begin - len(record), file.tell() - begin]

    numbers: dict[str, Any] = {name: getattr(bookmark, name) for name in ("ticks", "attempts", "num_events")}
    numbers |= {"state": add(bookmark.store.serializer.dumps(bookmark.state)), "kept": [], "clients": []}
    kept: dict[Kept, int] = {}
    known: dict[Client, list[int]] = {}
    for number, client in bookmark.moment.clients().items():
        if client in known:  # newcomers are one object
            known[client].append(number)
            continue
        known[client] = [number]
        if client.kept not in kept:
            kept[client.kept] = len(kept)
            numbers["kept"].append(add(bookmark.store.record(client.kept)))
        ahead = client.prepared and {name: getattr(client.prepared, name) for name in AHEAD}
        about = {"numbers": known[client], "kept": kept[client.kept], "turns": client.turns, "updates": client.updates}
        about |= {"memory": client.memory, "prepared": ahead and add(bookmark.store.serializer.dumps(ahead))}
        numbers["clients"].append(about)
    end = file.tell()
    file.write(json.dumps(numbers).encode())
    places = {"start": (HEADER, begin), "records": (begin, end), "numbers": (end, file.tell())}
    types = {"start": (TYPES[start.dtype], list(start.shape))}
    header = {
        name: {
            "dtype": types.get(name, ("U8",))[0],
            "shape": types[name][1] if name in types else [last - first],
            "data_offsets": [first - HEADER, last - HEADER],
        }
        for name, (first, last) in places.items()
    }
    file.seek(0)
    file.write(struct.pack("<Q", HEADER - 8) + json.dumps(header).encode().ljust(HEADER - 8))


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open the file; yield it and its numbers."""
    try:
        with safe_open(folder / FILE, framework="pt") as file:
            yield file, json.loads(file.get_tensor("numbers").numpy().tobytes())
    except (SafetensorError, ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(
            f"{folder / FILE} is damaged ({error}); restore it, or delete it to start a new run"
        ) from error
