"""Is somebody's own time model one? Found out before anything is computed."""

from itertools import islice

import numpy as np

from cdfl.own import check_method
from cdfl.sim.clock import TimeModel

TURNS_TRIED = 100
TURNS = "an object with turns(num_clients, rng) that yields cdfl.sim.clock.Turn(time, client, kind)"


def check_time_model(time_model: TimeModel, num_clients: int) -> None:
    """Read its first turns."""
    check_method("time_model", time_model, "turns", 2, TURNS)
    name, here, now = type(time_model).__name__, set[int](), 0.0
    for turn in islice(time_model.turns(num_clients, np.random.default_rng(0)), TURNS_TRIED):
        if not isinstance(turn, tuple) or len(turn) != 3 or turn[2] not in ("look", "join", "leave"):
            raise ValueError(
                f"{name}.turns gave {turn!r}; expected cdfl.sim.clock.Turn(time, client, kind), its kind look, "
                "join or leave"
            )
        time, client, kind = turn
        if time < now:
            raise ValueError(f"{name}.turns goes back from time {now} to {time}; expected times that never decrease")
        if kind != "join" and client not in here:
            raise ValueError(
                f"{name}.turns lets client {client} {kind} while it is not there; expected it to join first"
            )
        now = time
        here = here - {client} if kind == "leave" else here | {client}
