"""What a run tells, and the folder it is kept in.

A run yields events; the progress bar, the files, the tables and the plots are all readers of that one stream.
"""

import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch


@dataclass(frozen=True)
class Started:
    """A run begins: what is run, on what."""

    scenario: str
    algorithm: str
    seed: int
    num_clients: int
    num_clusters: int
    num_uploads: int
    model_bytes: int
    notes: str = ""  # what a reader of its results should know about its data, a line each; written where there are any


@dataclass(frozen=True)
class Uploaded:
    """One upload was taken and answered: one epoch of the server."""

    epoch: int  # t
    time: float  # virtual
    client: int
    update: int  # how many uploads this client had made before
    samples: int
    staleness: int
    outcome: str  # applied | deprecated | rejected
    held: float  # accuracy, on held-out data like its new ones, of the model it held when they came
    before: float  # accuracy of the uploaded model on the same data
    after: float  # accuracy of the reply on the same data
    true_mixture: list[float]
    mixture: list[float] | None  # the estimate; None where the algorithm makes none
    divergence: float | None  # KL of the estimate from the truth
    rates: list[float]
    bytes_up: int
    bytes_down: int
    client_flops: int  # counted: training and, where the client does it, estimating
    server_flops: int  # passes over the proxy sets
    trained: int  # samples that local training went over, all passes together


@dataclass(frozen=True)
class Diverged:
    """A training gave a model that is not finite, or has no finite loss: it is refused and moves nothing.

    The client goes on from the model it had.
    """

    time: float
    client: int


@dataclass(frozen=True)
class Clusters:
    """How good each cluster model is on held-out data of its own cluster."""

    epoch: int
    accuracies: list[float]


@dataclass(frozen=True)
class Finished:
    """A run is over. Client accuracies are means over the last upload of every client; no uploads have none."""

    uploads: int
    before: float | None
    after: float | None
    cluster: float
    divergence: float | None
    deprecated_share: float  # of all uploads
    rejected_share: float
    diverged: int  # trainings that gave no finite model
    staleness: dict[str, int]  # histogram: "0-7", "8-15", ... -> uploads
    bytes_up: int
    bytes_down: int
    client_flops: int
    server_flops: int
    trained: int  # samples, of all uploads
    shortfall: str = ""  # why there are fewer uploads than asked for; omitted from the file when empty


Event = Started | Uploaded | Diverged | Clusters | Finished
_KINDS: dict[str, type] = {kind.__name__.lower(): kind for kind in (Started, Uploaded, Diverged, Clusters, Finished)}
_E = TypeVar("_E", bound=Event)


def to_json(event: Event) -> str:
    """One line of an events file.

    >>> to_json(Clusters(epoch=3, accuracies=[0.5, 0.75]))
    '{"event": "clusters", "epoch": 3, "accuracies": [0.5, 0.75]}'
    """
    usual = {field.name: field.default for field in fields(event)}
    values = {name: value for name, value in asdict(event).items() if value != usual[name]}
    return json.dumps({"event": type(event).__name__.lower(), **values})


def from_json(line: str) -> Event:
    """The event of one line.

    >>> from_json('{"event": "clusters", "epoch": 3, "accuracies": [0.5, 0.75]}')
    Clusters(epoch=3, accuracies=[0.5, 0.75])
    """
    try:
        values = dict(json.loads(line))
    except (ValueError, TypeError):
        values = {}
    kind = _KINDS.get(values.pop("event", None))
    known = {} if kind is None else {field.name: field.default is MISSING for field in fields(kind)}
    needed = {name for name, is_needed in known.items() if is_needed}
    if kind is None or not needed <= values.keys() <= known.keys():
        raise ValueError(f"this line is no event of this version of cdfl: {line[:80]!r}")
    event: Event = kind(**values)
    return event


def only(events: Iterable[Event], kind: type[_E]) -> list[_E]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


class RunFolder:
    """A folder that holds one run: `config.json`, `versions.json`, `events.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "RunFolder":
        """A new folder; one that already holds a run, or a folder of runs, is left alone."""
        if (path / "events.jsonl").exists() or any(path.glob("*/events.jsonl")):
            raise FileExistsError(f"{path} already holds a run; name another folder with --out, or delete it")
        path.mkdir(parents=True, exist_ok=True)
        _write_json(path / "config.json", config)
        _write_json(path / "versions.json", versions())
        return cls(path)

    def config(self) -> dict[str, Any]:
        """Read the resolved config back."""
        file = self.path / "config.json"
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} cannot be read ({error}); restore it, or name another folder") from error
        return values

    @contextmanager
    def writer(self, told: Iterable[Event] = ()) -> Iterator[Callable[[Event], None]]:
        """Open the events file for writing, from its start or after events that were told before."""
        begun = self.path / "events.jsonl.new"
        begun.write_text("".join(to_json(event) + "\n" for event in told), encoding="utf-8")
        begun.replace(self.path / "events.jsonl")  # in one step: an interrupted run loses nothing it had told
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:

            def write(event: Event) -> None:
                file.write(to_json(event) + "\n")
                file.flush()

            yield write

    def events(self) -> list[Event]:
        """All events of the run so far; a last line that was cut off does not count."""
        file = self.path / "events.jsonl"
        lines = file.read_text(encoding="utf-8").split("\n") if file.exists() else [""]
        told = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                told.append(from_json(line))
            except ValueError as error:
                raise ValueError(f"{file}, line {number}: {error}") from None
        return told


def versions() -> dict[str, str]:
    """What a run ran on: versions and machine, no names or paths."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    found["threads"] = str(torch.get_num_threads())  # another number rounds sums in another order
    for package in ("cdfl", "torch", "numpy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, default=str) + "\n", encoding="utf-8")
