"""Clients that do not train: each gets a model, moves it half way to a goal, and uploads it.

They speak to their sockets themselves and have one buffer each, so that both cores are left to the server.
"""

import asyncio
import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from cdfl import wire

HEAD = 2**14  # bytes that are enough for the headers of any answer, and for any refusal
ATTEMPTS = 5  # to send an upload over a connection that stays
OK, BUSY = 200, 503


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]  # by their names in lower case
    body: memoryview  # lies in the buffer of the client, until its next request
    seconds: float  # from the first byte of the answer to its last


@dataclass
class Tally:
    """What a fleet saw."""

    seconds: list[float] = field(default_factory=list)  # of every update, from its first byte to its reply's last
    reply_seconds: float = 0.0  # of all updates together, from the first byte of a reply to its last
    outcomes: Counter[str] = field(default_factory=Counter)
    moved: int = 0  # clusters, by all updates together
    busy: int = 0  # answers of 503, which say when to come again
    cut: int = 0  # connections that ended before an answer; the upload was sent again, with its key
    errors: Counter[str] = field(default_factory=Counter)  # anything else that was no model

    def since(self, earlier: "Tally") -> "Tally":
        """Return what was seen after an earlier copy of this was made."""
        return Tally(
            self.seconds[len(earlier.seconds) :],
            self.reply_seconds - earlier.reply_seconds,
            self.outcomes - earlier.outcomes,
            self.moved - earlier.moved,
            self.busy - earlier.busy,
            self.cut - earlier.cut,
            self.errors - earlier.errors,
        )


class Cut(Exception):  # noqa: N818
    """The server has hung up."""


class Refused(Exception):  # noqa: N818
    """The server has answered with something that is no model."""


class Client:
    """One client on one connection. It uploads half of its goal plus half of the model it was sent."""

    def __init__(self, port: int, token: str, half_goal: np.ndarray) -> None:
        self._port, self._token, self._goal = port, token, half_goal
        self._buffer = bytearray(half_goal.nbytes + 2 * HEAD)
        self._socket: socket.socket | None = None
        self._model, self._epoch = bytearray(), ""

    async def join(self) -> None:
        """Get a model, also if the server hangs up because strangers take its places."""
        for _ in range(ATTEMPTS):
            try:
                self._take(await self._ask("GET /v1/model", {wire.REPLY: "model"}))
                return
            except (OSError, Cut):
                self.close()
        raise Cut(f"{ATTEMPTS} times")

    async def update(self, tally: Tally) -> None:
        """Upload a model and take the reply, however often the server is busy."""
        weights = np.frombuffer(self._model, np.float32, len(self._goal), len(self._model) - self._goal.nbytes)
        weights *= 0.5
        weights += self._goal
        begun = time.perf_counter()
        answer = await self._upload(tally)
        self._take(answer)
        tally.seconds.append(time.perf_counter() - begun)
        tally.reply_seconds += answer.seconds
        tally.outcomes[answer.headers[wire.OUTCOME.lower()]] += 1
        tally.moved += sum(float(rate) > 0 for rate in answer.headers[wire.RATES.lower()].split(","))

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _upload(self, tally: Tally) -> Answer:
        headers = {
            wire.BASE_EPOCH: self._epoch,
            wire.KEY: secrets.token_hex(16),
            wire.REPLY: "model",
            "Content-Type": wire.CONTENT_TYPE,
        }
        for _ in range(ATTEMPTS):
            try:
                while (answer := await self._ask("POST /v1/updates", headers, self._model)).status == BUSY:
                    tally.busy += 1
                    await asyncio.sleep(float(answer.headers["retry-after"]))
                return answer
            except (OSError, Cut):
                tally.cut += 1
                self.close()
        raise Cut(f"{ATTEMPTS} times")

    def _take(self, answer: Answer) -> None:
        if answer.status != OK:
            raise Refused(f"{answer.status}: {bytes(answer.body[:200]).decode()}")
        self._epoch, self._model = answer.headers[wire.EPOCH.lower()], bytearray(answer.body)

    async def _ask(self, what: str, headers: Mapping[str, str], body: bytes | bytearray = b"") -> Answer:
        loop = asyncio.get_running_loop()
        self._socket = self._socket or await connected(self._port)
        more = {"Host": "127.0.0.1", "Authorization": f"Bearer {self._token}", "Content-Length": str(len(body))}
        lines = [f"{what} HTTP/1.1", *(f"{name}: {value}" for name, value in (more | dict(headers)).items()), "", ""]
        await loop.sock_sendall(self._socket, "\r\n".join(lines).encode())
        await loop.sock_sendall(self._socket, body)
        return await self._answer(loop, self._socket)

    async def _answer(self, loop: asyncio.AbstractEventLoop, source: socket.socket) -> Answer:
        view = memoryview(self._buffer)
        filled, begun, end = await received(loop, source, view), time.perf_counter(), -1
        while (end := self._buffer.find(b"\r\n\r\n", 0, filled)) < 0:
            filled += await received(loop, source, view[filled:])
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        begin = end + 4
        total = begin + int(headers["content-length"])
        while filled < total:
            filled += await received(loop, source, view[filled:total])
        if headers.get("connection") == "close":
            self.close()
        return Answer(int(first.split()[1]), headers, view[begin:total], time.perf_counter() - begun)


async def connected(port: int) -> socket.socket:
    """Return a connected non-blocking socket."""
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    return made


async def received(loop: asyncio.AbstractEventLoop, source: socket.socket, into: memoryview) -> int:
    """Some bytes, at least one."""
    count = await loop.sock_recv_into(source, into)
    if count == 0:
        raise Cut
    return count


def make_clients(port: int, tokens: Sequence[str], goals: np.ndarray) -> list[Client]:
    """Return one client for each token, with its goal (n, P)."""
    return [Client(port, token, goal / 2) for token, goal in zip(tokens, goals, strict=True)]


async def exchange(clients: Sequence[Client], updates: float, tally: Tally) -> None:
    """Let all clients update at once, again and again without a break, until there were so many updates."""
    left = updates

    async def live(client: Client) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            try:
                await client.update(tally)
            except (OSError, Cut, Refused) as error:
                tally.errors[f"{type(error).__name__} {error}"] += 1
                client.close()
                await client.join()

    await asyncio.gather(*(live(client) for client in clients))


class Idlers:
    """Connections that say nothing. One that the server closes is opened again after a second."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []
        self.closed = 0  # by the server

    async def open(self, count: int) -> None:
        """Open so many more."""
        for _ in range(count):
            self._tasks.append(asyncio.create_task(self._sit(await connected(self._port))))

    async def close(self) -> None:
        """Close them all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _sit(self, place: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with place, suppress(ConnectionError):
                await loop.sock_recv(place, 1)
            self.closed += 1
            await asyncio.sleep(1.0)
            place = await connected(self._port)
