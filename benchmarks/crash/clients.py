"""Clients that upload without a pause, each in its own process, with a ledger of every request and answer."""

import hashlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.crash.fork_server import Process
from benchmarks.crash.site import Site
from cdfl import wire

IMPATIENCE = 0.05  # seconds a client waits at most before it tries again, whatever Retry-After says
STOP = "stop"  # the file that ends all clients of a folder


# -- in the process of a client


class Scribe:
    """Record what a client sends and gets, line by line; a kill cannot undo a line."""

    def __init__(self, folder: Path, client_id: str) -> None:
        self.bodies = folder / "bodies"
        self.bodies.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"{client_id}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def sends(self, key: str, base_epoch: str, body: bytes) -> None:
        """An upload is about to be sent."""
        digest = hashlib.sha256(body).hexdigest()
        file = self.bodies / digest
        if not file.exists() or file.stat().st_size != len(body):
            file.write_bytes(body)
        self.note(sent=key, base_epoch=int(base_epoch), digest=digest)

    def is_answered(self, key: str | None, status: int, headers: httpx.Headers) -> None:
        """The head of an answer is here: from now on the upload must not be lost. No key: it was no upload."""
        epoch = int(headers[wire.EPOCH]) if status == 200 else None
        outcome, wait = headers.get(wire.OUTCOME), headers.get("Retry-After")
        self.note(answered=key, status=status, epoch=epoch, outcome=outcome, retry_after=wait)

    def has_reply(self, key: str, head: httpx.Headers, body: bytes) -> None:
        """All of the answer is here."""
        shown = "".join(f"{name}={head[name]};" for name in (wire.EPOCH, wire.MIXTURE, wire.RATES, wire.OUTCOME))
        self.note(reply=key, digest=hashlib.sha256(body).hexdigest(), head=shown)

    def note(self, **line: Any) -> None:
        """One line."""
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Line(httpx.HTTPTransport):
    """A real connection with a scribe on it. It loses some replies; at some it is the client that dies.

    With `ports`, each request goes to one of them, as a load balancer sends it.
    """

    def __init__(
        self,
        scribe: Scribe,
        chance: random.Random,
        loses: float = 0.0,
        dies: float = 0.0,
        ports: Sequence[int] = (),
    ) -> None:
        super().__init__(verify=False)  # certificates take time to load
        self.scribe, self.chance, self.loses, self.dies, self.ports = scribe, chance, loses, dies, ports

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and record it."""
        if self.ports:
            request.url = request.url.copy_with(port=self.chance.choice(self.ports))
        key = request.headers.get(wire.KEY)
        if key is not None:
            self.scribe.sends(key, request.headers[wire.BASE_EPOCH], request.read())
        response = super().handle_request(request)
        try:
            self.scribe.is_answered(key, response.status_code, response.headers)
            body = b"".join(self._pieces(response, is_reply=key is not None and response.status_code == 200))
        finally:
            response.close()
        if key is not None and response.status_code == 200:
            self.scribe.has_reply(key, response.headers, body)
            if self.chance.random() < self.loses:
                raise httpx.ReadError("the reply is lost on its way", request=request)
        return httpx.Response(response.status_code, headers=response.headers, stream=httpx.ByteStream(body))

    def _pieces(self, response: httpx.Response, *, is_reply: bool) -> Iterator[bytes]:
        assert isinstance(response.stream, httpx.SyncByteStream)
        for piece in response.stream:
            if is_reply and self.chance.random() < self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            yield piece


def live(url: str, client_id: str, folder: str, habits: dict[str, Any]) -> None:
    """The life of a client: train, upload, again, until a file says stop; what is under way is finished."""
    import torch

    from benchmarks.crash import problem
    from cdfl.client import Client, Retry
    from cdfl.problems.problem_instance import client_network

    chance, seed = random.Random(), torch.Generator()
    seed.seed()
    scribe = Scribe(Path(folder) / "ledger", client_id)
    client = Client(
        url,
        client_network(problem.problem),
        client_id,
        settings=problem.problem.all_settings,
        state_dir=Path(folder) / "clients" / client_id,
        transport=Line(scribe, chance, **habits),
        retry=Retry(attempts=10**6, first_wait=IMPATIENCE),
        sleep=lambda seconds: time.sleep(min(seconds, IMPATIENCE)),
    )
    client.join()
    cluster = 0
    while not (Path(folder) / STOP).exists():
        if chance.random() < 0.1:  # its data drift
            cluster = chance.randrange(problem.NUM_CLUSTERS)
        reply = client.update(problem.fresh(cluster, seed))
        if reply is None or reply.outcome == "refreshed":
            raise AssertionError(f"an upload was given up: {reply}")
    client.close()


# -- in the process that watches


class Ledger:
    """What one client sent and got, as its scribe wrote it."""

    def __init__(self, path: Path) -> None:
        self.client_id = path.stem
        self.sent: list[dict[str, Any]] = []  # sent (the key), base_epoch, digest
        self.answers: list[dict[str, Any]] = []  # answered (the key; None: no upload), status, epoch, outcome, ...
        self.replies: list[dict[str, Any]] = []  # reply (the key), digest, head
        self.under_way: str | None = None  # the key of an upload without an answer
        self._path, self._position = path, 0

    @property
    def acknowledged(self) -> list[dict[str, Any]]:
        """Answers that acknowledged an upload."""
        return [answer for answer in self.answers if answer["status"] == 200 and answer["answered"] is not None]

    @property
    def refusals(self) -> list[dict[str, Any]]:
        """Answers that refused."""
        return [answer for answer in self.answers if answer["status"] != 200]

    def read_on(self) -> None:
        """Read what was written since; a line that is not complete yet waits."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            text, end, _ = file.read().rpartition(b"\n")
        self._position += len(text) + len(end)
        for line in map(json.loads, text.splitlines()):
            if "sent" in line:
                self.sent.append(line)
                self.under_way = line["sent"]
            elif "answered" in line:
                self.answers.append(line)
                self.under_way = None if line["status"] == 200 else self.under_way
            else:
                self.replies.append(line)


class Ledgers:
    """Those of all clients of a folder, as far as they were written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ledger"
        self._known: dict[Path, Ledger] = {}

    def read(self) -> list[Ledger]:
        """Every ledger, up to date."""
        for path in sorted(self.folder.glob("*.jsonl")):
            self._known.setdefault(path, Ledger(path)).read_on()
        return list(self._known.values())

    def body(self, digest: str) -> bytes:
        """An upload as it was sent."""
        return (self.folder / "bodies" / digest).read_bytes()


class Load:
    """Some clients. Those that are killed, or kill themselves, are started again by `revive`."""

    def __init__(self, site: Site, count: int, **habits: Any) -> None:
        self.site, self.habits = site, {"loses": 0.05} | habits
        self.deaths = 0
        self._ledgers = Ledgers(site.folder)
        (site.folder / STOP).unlink(missing_ok=True)
        self._clients = {name: self._start(name) for name in (f"client-{number}" for number in range(count))}

    def ledgers(self) -> list[Ledger]:
        """What was said so far."""
        return self._ledgers.read()

    def count(self) -> Counter[str]:
        """Acknowledged uploads so far, by client."""
        return Counter({ledger.client_id: len(ledger.acknowledged) for ledger in self.ledgers()})

    def refusals(self) -> int:
        """Uploads and questions that were refused so far."""
        return sum(len(ledger.refusals) for ledger in self.ledgers())

    def wait_for_uploads(self, each: int, seconds: float = 60.0) -> float:
        """Wait until every client has so many more acknowledged; returns how long that took."""
        before, begun = self.count(), time.monotonic()
        names = list(self._clients)
        wait_for(lambda: all(self.count()[name] >= before[name] + each for name in names), seconds, self.alarm)
        return time.monotonic() - begun

    def alarm(self) -> None:
        """Raise if a client has ended unexpectedly."""
        for process in self._clients.values():
            if not process.is_alive and process.wait(0) not in (0, -signal.SIGKILL):
                raise RuntimeError(f"a client has given up; it said:\n{process.log.read_text()[-2000:]}")

    def kill(self, name: str) -> None:
        """SIGKILL one of them."""
        self._clients[name].kill()

    def revive(self) -> int:
        """Start those again that were killed; returns how many."""
        self.alarm()
        dead = [name for name, process in self._clients.items() if not process.is_alive and process.wait(0) != 0]
        for name in dead:
            self._clients[name] = self._start(name)
        self.deaths += len(dead)
        return len(dead)

    def finish(self) -> None:
        """Let every client finish its upload, and end."""
        (self.site.folder / STOP).touch()
        while any(process.wait(60) for process in self._clients.values()):
            self.revive()  # it finishes what it had under way when it died

    def _start(self, name: str) -> Process:
        where = (self.site.url, name, str(self.site.folder))
        log = self.site.folder / f"{name}.log"
        return self.site.fork_server.start("benchmarks.crash.clients:live", *where, self.habits, log=log)


def wait_for(condition: Callable[[], bool], seconds: float, alarm: Callable[[], Any] = lambda: None) -> None:
    """Wait until a condition holds; `alarm` may raise if it never will."""
    deadline = time.monotonic() + seconds
    while not condition():
        alarm()
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen within {seconds} s")
        time.sleep(0.02)
