"""The clients of a simulation. Those that wait at a moment can be had again later, without copying all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from cdfl.algorithms import Assignment
from cdfl.sim.client_spill import Held, Kept
from cdfl.sim.scenario_instance import TurnData
from cdfl.upload_policies import Memory


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished training whose upload is not due yet."""

    local_model: Tensor  # (P,)
    losses: Tensor | None  # (K,) on the proxy sets
    finite: bool


@dataclass(frozen=True, eq=False)
class Prepared:
    """What was computed ahead for a client's next turn."""

    held: Held
    turn_data: TurnData
    assignment: Assignment
    uploads: bool  # its policy's decision
    mixture: Tensor | None  # (K,) its own estimate, by the router
    trained: Trained | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Client:
    """One client. All that joined at the same state and never had a turn are the same object."""

    kept: Kept
    turns: int = 0
    updates: int = 0
    memory: Memory = ()
    prepared: Prepared | None = None  # None: it sleeps


class Population:
    """Clients by number, each frozen; a change replaces one. `mark` remembers a moment."""

    def __init__(self, clients: dict[int, Client] | None = None) -> None:
        self._clients = dict(clients or {})
        self._changes = _Changes()

    def __getitem__(self, number: int) -> Client:
        return self._clients[number]

    def __setitem__(self, number: int, client: Client) -> None:
        self._changes.before.setdefault(number, self._clients.get(number))
        self._clients[number] = client

    def __delitem__(self, number: int) -> None:
        self._changes.before.setdefault(number, self._clients[number])
        del self._clients[number]

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, number: int) -> bool:
        return number in self._clients

    def items(self) -> Iterator[tuple[int, Client]]:
        """Yield all clients with their numbers."""
        yield from self._clients.items()

    def mark(self) -> "Moment":
        """Remember this moment. It costs memory for clients that change afterwards, until it is dropped."""
        self._changes.later = _Changes()
        self._changes = self._changes.later
        return Moment(self._clients, self._changes)


class _Changes:
    """What clients were before they changed, from one mark to the next; None if they were not there."""

    def __init__(self) -> None:
        self.before: dict[int, Client | None] = {}
        self.later: _Changes | None = None


@dataclass(frozen=True, eq=False)
class Moment:
    """The clients at a mark."""

    _now: dict[int, Client]
    _since: _Changes

    def clients(self) -> dict[int, Client]:
        """Return the clients as they were, by number."""
        before: dict[int, Client | None] = {}
        changes: _Changes | None = self._since
        while changes is not None:
            before = changes.before | before  # the earliest change knows what was at the mark
            changes = changes.later
        found = {number: client for number, client in self._now.items() if number not in before}
        found |= {number: client for number, client in before.items() if client is not None}
        return dict(sorted(found.items()))
