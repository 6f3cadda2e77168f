"""Is somebody's own policy or time model one? Found out before anything is computed."""

import inspect
from itertools import islice
from typing import Any

import numpy as np

from cdfl.policy import Look, Policy
from cdfl.sim.clock import TimeModel

TURNS_TRIED = 100
DECIDES = "an object with decide(memory, look) -> (memory, bool)"
TURNS = "an object with turns(num_clients, rng) that yields cdfl.sim.clock.Turn(time, client, kind)"


def check_policy(policy: Policy) -> None:
    """Ask it once: a policy remembers nothing itself."""
    _has("policy", policy, "decide", 2, DECIDES)
    name = type(policy).__name__
    answer = policy.decide((), Look(samples=1, measure=lambda: 1.0, chance=0.5))
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ValueError(f"{name}.decide gave {answer!r}; expected two things: (memory, bool)")
    memory, upload = answer
    if not isinstance(memory, tuple) or not all(isinstance(part, int | float) for part in memory):
        raise ValueError(
            f"{name}.decide remembers {memory!r}; expected a tuple of numbers, which a checkpoint can keep"
        )
    if not isinstance(upload, bool | np.bool_):
        raise ValueError(f"{name}.decide says {upload!r}; expected True (upload) or False")


def check_time_model(time_model: TimeModel, num_clients: int) -> None:
    """Read its first turns."""
    _has("time_model", time_model, "turns", 2, TURNS)
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


def _has(option: str, given: Any, method: str, parameters: int, expected: str) -> None:
    """Refuse what has no such method, and a class where an object of it was meant."""
    if isinstance(given, type):
        raise ValueError(f"{option} is the class {given.__name__}; expected {expected}: {given.__name__}(...)")
    work = getattr(given, method, None)
    if not callable(work):
        raise ValueError(f"{option} is {given!r}; expected a name, or {expected}")
    try:
        inspect.signature(work).bind(*range(parameters))
    except TypeError:
        own = f"{type(given).__name__}.{method}{inspect.signature(work)}"
        raise ValueError(f"{option} has {own}; expected {expected}") from None
