"""The ticks of a run, read ahead: which clients have a turn soon."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from cdfl.sim.time_models import Tick

READ_AHEAD = 2**16  # ticks
LEAVES = -1  # stands for the position of a turn where a client leaves


class Agenda:
    """Gives ticks one by one, and knows the next turns of clients. It costs memory for the ticks read ahead only."""

    def __init__(self, ticks: Iterator[Tick], most_turns: int | None = None, read_ahead: int = READ_AHEAD) -> None:
        """Read at most `most_turns` turns, if the last turn of the run is known."""
        self._ticks = ticks if most_turns is None else _until(ticks, most_turns)
        self._read_ahead = read_ahead
        self._ahead: deque[Tick] = deque()
        self._turns: dict[int, deque[int]] = {}  # positions of each client's coming turns, as far as they are read
        self._queue: list[tuple[int, int]] = []  # (position, client): the next turn of clients that wait for it
        self._now: int | None = None  # the client of the last tick
        self.passed: Counter[str] = Counter()  # ticks that were taken, of each kind

    @property
    def taken(self) -> int:
        """The number of ticks that were taken."""
        return self.passed.total()

    def take(self) -> Tick | None:
        """Return the next tick; None after the last one."""
        if self._now is not None:
            self._wait(self._now)
        while len(self._ahead) < self._read_ahead and (tick := next(self._ticks, None)) is not None:
            self._read(tick)
        if not self._ahead:
            return None
        tick = self._ahead.popleft()
        self._now = tick.client
        if tick.kind != "join":
            positions = self._turns[tick.client]
            positions.popleft()
            if not positions:
                del self._turns[tick.client]
        self.passed[tick.kind] += 1
        return tick

    def skip(self, count: int) -> None:
        """Take ticks that were taken before."""
        while self.taken < count and self.take() is not None:
            pass

    def soonest(self, count: int, is_wanted: Callable[[int], bool]) -> list[int]:
        """Return clients whose next turn comes first, at most `count` of those that wait and are wanted.

        Each is returned once for a turn. The client of the present tick is not among them.
        """
        found: dict[int, None] = {}  # a client that joins after its turn was read is queued twice
        while self._queue and len(found) < count:
            position, client = heappop(self._queue)
            if self._next(client) == position and is_wanted(client):
                found[client] = None
        return list(found)

    def returns_within(self, client: int, ticks: int) -> bool:
        """Return whether a client has another turn soon, after the one that it has now or waits for."""
        place = 0 if client == self._now else 1
        positions = self._turns.get(client, ())
        return len(positions) > place and LEAVES < positions[place] < self.taken + ticks

    def _read(self, tick: Tick) -> None:
        position = self.taken + len(self._ahead)
        self._ahead.append(tick)
        if tick.kind == "join":
            return
        positions = self._turns.setdefault(tick.client, deque())
        positions.append(position if tick.kind == "turn" else LEAVES)
        if len(positions) == 1:
            self._wait(tick.client)

    def _wait(self, client: int) -> None:
        if (position := self._next(client)) is not None:
            heappush(self._queue, (position, client))

    def _next(self, client: int) -> int | None:
        """Return the position of a client's next turn, if it is read and the client does not leave before."""
        positions = self._turns.get(client)
        return positions[0] if positions and positions[0] != LEAVES else None


def _until(ticks: Iterator[Tick], turns: int) -> Iterator[Tick]:
    """Yield the ticks up to and including a number of turns."""
    for tick in ticks:
        yield tick
        turns -= tick.kind == "turn"
        if turns == 0:
            return
