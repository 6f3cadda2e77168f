"""Is somebody's own time model one? Its first turns are tried before anything is computed, all checked as they come."""

from collections.abc import Iterator
from itertools import islice
from numbers import Integral, Real

import numpy as np

from cdfl.own import check_method
from cdfl.sim.clock import TIME_MODELS, Rng, TimeModel, Turn

TURNS_TRIED = 100
TURNS = (
    f"a name ({', '.join(TIME_MODELS)}), or an object with turns(num_clients, rng) that yields "
    "cdfl.sim.clock.Turn(time, client, kind)"
)


def check_time_model(time_model: TimeModel, num_clients: int) -> None:
    """Read its first turns."""
    check_method("time_model", time_model, "turns", 2, TURNS)
    for _ in islice(checked_turns(time_model, num_clients, np.random.default_rng(0)), TURNS_TRIED):
        pass


def checked_turns(time_model: TimeModel, num_clients: int, rng: Rng) -> Iterator[Turn]:
    """The turns of a time model; ValueError at the first one that cannot be taken."""
    name, here, now, clients = type(time_model).__name__, set[int](), 0.0, range(num_clients)
    for turn in time_model.turns(num_clients, rng):
        if not isinstance(turn, Turn) or turn.kind not in ("look", "join", "leave"):
            raise ValueError(
                f"{name}.turns gave {turn!r}; expected cdfl.sim.clock.Turn(time, client, kind), its kind look, "
                "join or leave"
            )
        time, client, kind = turn
        if not isinstance(client, Integral) or client not in clients:
            raise ValueError(f"{name}.turns gave client {client!r}; expected an int from 0 to {num_clients - 1}")
        if not isinstance(time, Real) or not now <= time < float("inf"):
            raise ValueError(
                f"{name}.turns goes from time {now} to {time!r}; expected finite numbers that never decrease"
            )
        if kind == "join":
            here.add(client)
        elif client not in here:
            raise ValueError(
                f"{name}.turns lets client {client} {kind} while it is not there; expected it to join first"
            )
        elif kind == "leave":
            here.remove(client)
        now = time
        yield Turn(float(time), int(client), kind)  # numpy's cannot be written down
