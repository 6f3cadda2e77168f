"""Time models: which clients are present, and when fresh data arrive at them.

The paper does not specify this. It decides how stale uploads are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice
from numbers import Integral, Real
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from cdfl.argument_checks import check_method, did_you_mean

Rng = np.random.Generator


class Tick(NamedTuple):
    """One client joins, leaves or has its turn: fresh data arrive and its policy decides whether to upload."""

    time: float
    client: int
    kind: Literal["turn", "join", "leave"] = "turn"


class TimeModel(Protocol):
    """A sequence of ticks, usually endless. It does not depend on models, so it can be read ahead."""

    def ticks(self, num_clients: int, rng: Rng) -> Iterator[Tick]:
        """Yield ticks with times that never decrease; a client joins before its first turn."""
        ...


def all_join(num_clients: int) -> Iterator[Tick]:
    """Return ticks with which all clients join at time 0."""
    return (Tick(0.0, client, "join") for client in range(num_clients))


@dataclass(frozen=True)
class Uniform:
    """Each turn belongs to a client drawn uniformly at random."""

    def ticks(self, num_clients: int, rng: Rng) -> Iterator[Tick]:
        """Yield one turn per unit of time."""
        yield from all_join(num_clients)
        for time in count(1):
            yield Tick(float(time), int(rng.integers(num_clients)))


@dataclass(frozen=True)
class Sessions:
    """In every session each client has one turn, in a random order."""

    def ticks(self, num_clients: int, rng: Rng) -> Iterator[Tick]:
        """Yield one turn per unit of time."""
        yield from all_join(num_clients)
        for session in count():
            for place, client in enumerate(rng.permutation(num_clients)):
                yield Tick(float(session * num_clients + place + 1), int(client))


@dataclass(frozen=True)
class FewActive:
    """A few clients take turns for a while, then the next few, so uploads are rarely stale."""

    active: int = 4
    turns_each: int = 5

    def __post_init__(self) -> None:
        if self.active < 1 or self.turns_each < 1:
            raise ValueError(f"active is {self.active}, turns_each is {self.turns_each}; expected at least 1 of each")

    def ticks(self, num_clients: int, rng: Rng) -> Iterator[Tick]:
        """Yield one turn per unit of time."""
        yield from all_join(num_clients)
        time = count(1)
        while True:
            order = rng.permutation(num_clients)
            for first in range(0, num_clients, self.active):
                for _ in range(self.turns_each):
                    for client in order[first : first + self.active]:
                        yield Tick(float(next(time)), int(client))


@dataclass(frozen=True)
class Exponential:
    """Clients wait an exponential time between turns, each at its own rate: some come often, some rarely.

    Rates are log-normal with mean 1; `unevenness` is the deviation of the logarithm, and 0 makes all clients alike.
    """

    unevenness: float = 1.0

    def ticks(self, num_clients: int, rng: Rng) -> Iterator[Tick]:
        """Yield the turns; exponential waiting times need no queue."""
        yield from all_join(num_clients)
        rates = rng.lognormal(-(self.unevenness**2) / 2, self.unevenness, num_clients)
        total = rates.sum()
        shares = np.cumsum(rates) / total
        time = 0.0
        while True:
            time += rng.exponential(1 / total)
            yield Tick(time, min(int(np.searchsorted(shares, rng.random(), side="right")), num_clients - 1))


@dataclass(frozen=True)
class Span:
    """A random length of time, or the next number on a client's line of a trace file.

    >>> Span("constant", 3.0).draw(np.random.default_rng(0), client=0)
    3.0
    """

    kind: Literal["constant", "uniform", "exponential", "lognormal", "trace"] = "constant"
    mean: float = 0.0
    spread: float = 0.5  # uniform: half width relative to the mean; lognormal: deviation of the logarithm
    trace: tuple[tuple[float, ...], ...] = ()  # one row of lengths for each client, repeated from the start

    def __post_init__(self) -> None:
        kinds = get_args(type(self).__annotations__["kind"])
        if self.kind not in kinds:
            raise ValueError(f"a span is {self.kind!r}; expected one of {', '.join(kinds)}")
        if not 0 <= self.mean < float("inf") or self.spread < 0 or (self.kind == "uniform" and self.spread > 1):
            raise ValueError(
                f"a {self.kind} span has mean {self.mean} and spread {self.spread}; expected numbers of at least 0, "
                "and a spread of at most 1 where it is uniform, so that no time is negative"
            )
        if (self.kind == "trace") != bool(self.trace) or not all(self.trace):
            raise ValueError(
                f"a {self.kind} span has {len(self.trace)} rows; expected rows of numbers for a trace only"
            )

    def draw(self, rng: Rng, client: int, number: int = 0) -> float:
        """Draw the `number`-th length of a client."""
        match self.kind:
            case "constant":
                return self.mean
            case "uniform":
                return float(rng.uniform(self.mean * (1 - self.spread), self.mean * (1 + self.spread)))
            case "exponential":
                return float(rng.exponential(self.mean))
            case "lognormal":
                return float(self.mean * rng.lognormal(-(self.spread**2) / 2, self.spread))
            case "trace":
                row = self.trace[client % len(self.trace)]
                return row[number % len(row)]

    @classmethod
    def from_file(cls, path: Path | str) -> "Span":
        """Read a trace: one line for each client, with its lengths of time as numbers separated by commas."""
        path, rows = Path(path), []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path.name} is not a text file ({error}); expected one line of numbers for each client"
            ) from None
        for number, line in enumerate(lines, start=1):
            try:
                row = tuple(float(word) for word in line.rstrip(", \t").split(","))
            except ValueError:
                row = ()
            if not row or min(row) < 0 or not np.isfinite(row).all():
                raise ValueError(
                    f"{path.name}, line {number}: {line[:60]!r}; expected numbers of at least 0, separated by commas"
                )
            rows.append(row)
        if not rows:
            raise ValueError(f"{path.name} is empty; expected one line of numbers for each client")
        return cls("trace", trace=tuple(rows))


@dataclass(frozen=True)
class Devices:
    """Devices that differ in speed, network and availability, and that come and go.

    Between two uploads a device downloads, waits for data, trains and uploads. `slowness` is drawn once for each
    device and multiplies its training times.
    """

    wait: Span = Span("exponential", 1.0)
    training: Span = Span("lognormal", 0.2)
    slowness: Span = Span("lognormal", 1.0)
    network: Span = Span("lognormal", 0.05)  # one way
    joins: Span = field(default=Span("constant", 0.0))  # when it joins; 0: at the start
    stays: Span | None = None  # how long it stays; None if it stays to the end

    def ticks(self, num_clients: int, rng: Rng) -> Iterator[Tick]:
        """Yield ticks from a queue of (time, sequence); the sequence breaks ties."""
        queue: list[tuple[float, int, Tick]] = []
        sequence = count()
        slowness = [self.slowness.draw(rng, client) for client in range(num_clients)]
        leaves = [float("inf")] * num_clients
        done = [0] * num_clients

        def push(tick: Tick) -> None:
            heappush(queue, (tick.time, next(sequence), tick))

        def cycle(client: int, now: float) -> None:
            number, spans = done[client], (self.network, self.wait, self.training, self.network)
            down, wait, training, up = (span.draw(rng, client, number) for span in spans)
            arrival = now + down + wait + training * slowness[client] + up
            done[client] += 1
            push(Tick(arrival, client) if arrival < leaves[client] else Tick(leaves[client], client, "leave"))

        for client in range(num_clients):
            start = self.joins.draw(rng, client)
            if self.stays is not None:
                leaves[client] = start + self.stays.draw(rng, client)
            push(Tick(start, client, "join"))
        while queue:
            _, _, tick = heappop(queue)
            yield tick
            if tick.kind != "leave":
                cycle(tick.client, tick.time)


TIME_MODELS: dict[str, TimeModel] = {
    "uniform": Uniform(),
    "sessions": Sessions(),
    "few-active": FewActive(),
    "exponential": Exponential(),
    "devices": Devices(),
}


def make_time_model(name: str) -> TimeModel:
    """Return a time model by its name, or devices that wait as a trace file says.

    >>> make_time_model("sessions")
    Sessions()
    """
    if name in TIME_MODELS:
        return TIME_MODELS[name]
    if Path(name).is_file():
        return Devices(wait=Span.from_file(Path(name)))
    there = f"there are {', '.join(TIME_MODELS)}{did_you_mean(name, TIME_MODELS)}"
    raise ValueError(f"there is no time model {name!r}, and no trace file; {there}")


TICKS_TRIED = 100
EXPECTED = (
    f"a name ({', '.join(TIME_MODELS)}), or an object with ticks(num_clients, rng) that yields "
    "cdfl.sim.time_models.Tick(time, client, kind)"
)


def check_time_model(time_model: TimeModel, num_clients: int) -> None:
    """Raise ValueError if the first ticks of a time model are not valid."""
    check_method("time_model", time_model, "ticks", 2, EXPECTED)
    for _ in islice(checked_ticks(time_model, num_clients, np.random.default_rng(0)), TICKS_TRIED):
        pass


def checked_ticks(time_model: TimeModel, num_clients: int, rng: Rng) -> Iterator[Tick]:
    """Yield the ticks of a time model; raise ValueError at the first one that is not valid."""
    name, here, now, clients = type(time_model).__name__, set[int](), 0.0, range(num_clients)
    for tick in time_model.ticks(num_clients, rng):
        if not isinstance(tick, Tick) or tick.kind not in ("turn", "join", "leave"):
            raise ValueError(
                f"{name}.ticks gave {tick!r}; expected cdfl.sim.time_models.Tick(time, client, kind), its kind turn, "
                "join or leave"
            )
        time, client, kind = tick
        if not isinstance(client, Integral) or client not in clients:
            raise ValueError(f"{name}.ticks gave client {client!r}; expected an int from 0 to {num_clients - 1}")
        if not isinstance(time, Real) or not now <= time < float("inf"):
            raise ValueError(
                f"{name}.ticks goes from time {now} to {time!r}; expected finite numbers that never decrease"
            )
        if kind == "join":
            here.add(client)
        elif client not in here:
            raise ValueError(f"{name}.ticks lets client {client} {kind} while it is absent; expected it to join first")
        elif kind == "leave":
            here.remove(client)
        now = time
        yield Tick(float(time), int(client), kind)  # numpy's numbers have no JSON
