"""A deterministic simulation of the service: one seeded scheduler, the real application on a real SQLite.

Every step of the service is a step of the scheduler: a request comes, a piece of its body arrives, its peer hangs up;
the event loop makes one turn; a thread does what it was asked to do; the evaluating and the applying thread take what
waits; the clock moves; the disk fails at any of its steps, or the process dies there and starts again; the command line
creates and revokes tokens, forgets clients, makes backups, and is refused a second server, as `cdfl rollback` would be.
The order follows from the seed alone, so a failing seed replays.
"""

import hashlib
import json
import secrets
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
import torch

from cdfl import wire
from cdfl.core import Settings
from cdfl.server.app import create_app
from cdfl.server.auth import Access, Tokens
from cdfl.server.backup import backup
from cdfl.server.events import Notifier
from cdfl.server.limits import Limits
from cdfl.server.maintenance import Maintenance
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreBusy, StoreError, StoreUnavailable
from cdfl.server.upload_losses import Evaluators
from cdfl.server.verify import verify

from .disk import AtOnce, Crash, Disk
from .scheduled import Exchange, Loop, Pool, Proxy, Still, Threads
from .toy import LAYOUT, TARGETS, evaluate, find, first_state, same_state

SETTINGS = Settings(guard=True, max_staleness=20)
LIMITS = Limits(requests_per_second=1e9, burst=10**9, queue=6, queue_seconds=1e9, stall_seconds=30.0)
NAMES = [f"car-{number}" for number in range(4)]
OPERATOR = "operator"
FAULTS = ("crash before", "crash after", "error before", "error after")
STEPS = ("write", "fsync", "replace", "link", "unlink", "commit", "statement", "spool")
FORGOTTEN = "what a client asked before it was forgotten"
AGAIN = (0, 408, 429, 503)  # a client sends the same upload again; 0: no answer


class Device:
    """One client: what it holds, and what it is doing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.token: str | None = None
        self.epoch: int | None = None
        self.pending: tuple[str, int, bytes] | None = None  # key, base epoch and body of an upload without an answer
        self.last: tuple[str, int, bytes] | None = None  # the newest one that was answered
        self.exchange: Exchange | None = None
        self.asked = ""  # what that is about

    def forget(self) -> None:
        """It holds nothing any more."""
        self.token = self.epoch = self.pending = self.last = None


class World:
    """One run of the simulation."""

    def __init__(self, place: Path, seed: int, patched: pytest.MonkeyPatch) -> None:
        self.place, self.random, self.now, self.patched = place, Random(seed), 0.0, patched  # noqa: S311
        self.torch = torch.Generator().manual_seed(seed)
        self.trace: list[str] = []
        self.devices = {name: Device(name) for name in NAMES}
        self.streams: list[tuple[str, Exchange]] = []  # name ("" of the operator) and stream
        self.acknowledged: dict[tuple[str, str], tuple[str, bytes]] = {}  # (client, key) -> outcome, body
        self.asked: set[str] = set()  # clients to be forgotten
        self.forgotten: set[str] = set()  # and not allowed to join again yet
        self.withdrawn: set[tuple[str, str]] = set()  # uploads that must never be committed
        self.keys = self.crashes = 0
        self.graves: list = []  # of processes that are dead: nothing in them may run
        self.loops: list[Loop] = []
        place.mkdir(parents=True, exist_ok=True)
        self.disk = Disk(place / "blobs", place / "graveyard", statements=True)
        self.disk.install(patched)
        patched.setattr(time, "monotonic", lambda: self.now)
        patched.setattr(time, "time", lambda: 1e9 + self.now)
        patched.setattr(secrets, "token_hex", lambda count=32: self.random.randbytes(count).hex())
        self.start()

    # -- the process

    def start(self):
        """Start the server: recover, or begin. It may die on the way."""
        while True:
            try:
                self._start()
            except Crash:
                self.die()
            except StoreUnavailable:  # its supervisor starts it again
                self.die()
            else:
                return

    def _start(self):
        self.threads = Threads(self.random)
        self.loop = Loop(self.threads, lambda: self.now, self.before_job)
        self.loops.append(self.loop)
        self.store = Store.open(self.place)
        self.disk.watch(self.store)
        self.store._writers, self.store._cleaner = AtOnce(), Pool(self.threads)
        recovered = self.store.recover()
        if recovered is None:
            state = first_state()
            self.store.begin(state, LAYOUT, SETTINGS)
        else:
            state = recovered.state
        options = {"snapshot_every": 7, "limits": LIMITS, "clock": time.time}
        self.engine = Still(state, LAYOUT, SETTINGS, self.store, Evaluators(Proxy(), evaluate), **options)
        self.engine.maintenance = Maintenance(
            self.store, 7, clock=lambda: self.now, on_forget=self.engine.maintenance.on_forget
        )
        self.engine.maintenance._worker = Pool(self.threads)
        self.engine.listeners.append(self)
        self.access = Access(Tokens(self.store.database), operator_token=OPERATOR)
        self.app = create_app(self.engine, self.access, Notifier())
        known = set(self.store.all_blobs())
        left = {name for name in self.store.blobs.names() if not name.startswith("store-")} - known
        assert not left, f"blobs are left over: {left}"

    def die(self):
        """The process is gone, and with it what was not synced."""
        self.crashes += 1
        self.disk.disarm()
        exchanges = [device.exchange for device in self.devices.values()] + [each for _, each in self.streams]
        for exchange in filter(None, exchanges):
            exchange.task._log_destroy_pending = False
        self.graves.append((exchanges, self.threads, getattr(self, "loop", None), getattr(self, "engine", None)))
        for device in self.devices.values():
            device.exchange = None
        self.streams = []
        if hasattr(self, "store"):
            self.store.database.close()
        self.disk.power_off()

    def before_job(self, function):
        """A thread writes a piece of a body to the spool."""
        inner = (getattr(function, "args", ()) or (function,))[0]
        if getattr(inner, "__name__", "") in ("write", "open"):
            self.disk.step("spool")

    # -- steps

    def step(self):
        """One step of somebody, chosen by the seed."""
        open_ = [device.exchange for device in self.devices.values() if device.exchange] + [e for _, e in self.streams]
        chances = {
            self.turn: 20 if self.loop.is_ready else 0,
            self.job: 14 if self.threads.jobs else 0,
            self.deliver: 9 if any(each.pieces for each in open_) else 0,
            self.cut: 0.3 if open_ else 0,
            self.ask: 4, self.watch: 0.15, self.evaluate: 3, self.apply: 3, self.tick: 0.6, self.create: 0.7,
            self.revoke: 0.15, self.forget: 0.15, self.backup: 0.01, self.intrude: 0.03,
            self.fault: 0.25, self.restart: 0.04,
        }  # fmt: skip
        (chosen,) = self.random.choices(list(chances), list(chances.values()))
        device = self.devices[self.random.choice(NAMES)]
        self.trace.append(f"{chosen.__name__} {device.name}")
        try:
            with suppress(StoreUnavailable):
                chosen(device)
            self.collect()
        except Crash:
            epoch, state = self.engine.state.epoch, self.engine.state
            self.die()
            self.start()
            now = self.engine.state
            assert now.epoch >= epoch, f"the server was at epoch {epoch} and came back at {now.epoch}"
            assert now.epoch > epoch or same_state(now, state), "a restart changed the state"
            for name in self.asked.difference(self.store.asked_to_forget()):
                self.forgot(name)  # before the process died

    def turn(self, _):
        self.loop.turn()

    def job(self, _):
        self.threads.run_one()

    def deliver(self, _):
        waiting = [device.exchange for device in self.devices.values() if device.exchange and device.exchange.pieces]
        if waiting:
            self.random.choice(waiting).deliver()

    def cut(self, device):
        streams = [stream for _, stream in self.streams]
        exchange = device.exchange or (self.random.choice(streams) if streams else None)
        if exchange is not None:
            exchange.cut()

    def ask(self, device):
        """A client does what it wants next."""
        if device.exchange is not None or device.token is None:
            return
        if device.last is not None and self.random.random() < 0.1:
            self._upload(device, device.last)  # as if the answer had been lost
        elif device.pending is not None:
            self._upload(device, device.pending)
        elif device.epoch is None or self.random.random() < 0.05:
            self._send(device, "model", "GET", "/v1/model", {})
        elif self.random.random() < 0.05:
            self._send(device, "me", "GET", "/v1/clients/me", {})
        else:
            self.keys += 1
            noise = torch.randn(LAYOUT.size, generator=self.torch)
            body = wire.encode_model(TARGETS[self.random.randrange(len(TARGETS))] + 0.3 * noise, LAYOUT)
            device.pending = f"key-{self.keys}", device.epoch, body
            self._upload(device, device.pending)

    def _upload(self, device, upload):
        key, epoch, body = upload
        headers = {wire.BASE_EPOCH: str(epoch), wire.KEY: key, "Content-Type": wire.CONTENT_TYPE}
        headers |= {"Content-Length": str(len(body)), wire.DIGEST: wire.digest_header(hashlib.sha256(body).hexdigest())}
        cuts = sorted(self.random.sample(range(len(body)), self.random.randrange(4)))
        pieces = [body[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        self._send(device, key, "POST", "/v1/updates", headers, pieces)

    def _send(self, device, asked, method, target, headers, pieces=(b"",)):
        headers = headers | {"Authorization": f"Bearer {device.token}"}
        device.asked = asked
        device.exchange = Exchange(self.loop, self.app, method, target, headers, pieces)

    def watch(self, device):
        """The operator or a client follows the events."""
        name = self.random.choice(["", device.name])
        token = self.devices[name].token if name else OPERATOR
        if token is not None and len(self.streams) < 3:
            headers = {"Authorization": f"Bearer {token}", "Last-Event-ID": "0"}
            self.streams.append((name, Exchange(self.loop, self.app, "GET", "/v1/events", headers)))

    def evaluate(self, _):
        self.engine.step_evaluate(self.random.randint(1, 4))

    def apply(self, _):
        self.engine.step_apply(self.random.randint(0, 4))

    def tick(self, _):
        """Time passes."""
        self.now += self.random.choice([0.3, 1.1, 6.0, 40.0, 700.0])

    def fault(self, _):
        """The disk fails, or the process dies, at a step to come."""
        when = self.random.choice([self.random.choice(STEPS), self.random.randrange(12)])
        self.disk.arm(self.random.choice(FAULTS), when)

    def restart(self, _):
        """Stop in order, and start again."""
        self.settle()
        self.engine.maintenance.finish(self.engine.state)
        state = self.engine.state
        self.threads.drain()
        self.store.close()
        self.streams = []
        self.start()
        assert same_state(self.engine.state, state), "a restart changed the state"

    # -- the command line, which has a connection of its own

    @contextmanager
    def calm(self):
        """Faults come to the server only, and not to those who look at it."""
        fault, self.disk.fault = self.disk.fault, None
        try:
            yield
        finally:
            self.disk.fault = fault

    @contextmanager
    def command(self):
        """A command opens the store beside the server."""
        with self.calm(), Store.open(self.place, own=False) as store:
            yield store

    def create(self, device):
        if device.token is None:
            with self.command() as store:
                device.token = Tokens(store.database).create(device.name)
            self.forgotten.discard(device.name)

    def revoke(self, device):
        with self.command() as store:
            Tokens(store.database).revoke(device.name)
        self.withdraw(device)
        device.token = None

    def forget(self, device):
        """The command line asks; the server does it at its next maintenance."""
        with self.command() as store:
            store.ask_to_forget(device.name)
        self.asked.add(device.name)

    def backup(self, _):
        copy = self.place / "copy"
        with self.command() as store:
            made = backup(store, copy)
            with Store.open(copy) as opened:
                assert opened.epoch == made.epoch
                if not store.asked_to_forget():  # which has perhaps begun to delete blobs
                    found = verify(opened).findings
                    assert found == [], found
        with self.calm():
            shutil.rmtree(copy)

    def intrude(self, _):
        """A second server, and a rollback beside a running server, are refused."""
        with self.calm(), pytest.raises(StoreBusy):
            Store.open(self.place)

    # -- what must hold

    def withdraw(self, device):
        """What this client has sent, and is not committed yet, must never be."""
        if device.pending is not None:
            key = device.pending[0]
            with self.calm(), suppress(StoreError):
                if find(self.store, device.name, key) is None:
                    self.withdrawn.add((device.name, key))
        device.pending = None

    def joined(self, client_id):
        """As a listener of the engine."""

    def committed(self, entries):
        """As a listener of the engine."""

    def forgot(self, client_id):
        """As a listener of the engine: from now on, nothing of this client may be there."""
        device = self.devices[client_id]
        self.asked.discard(client_id)
        self.withdraw(device)
        device.forget()
        device.asked = FORGOTTEN
        self.forgotten.add(client_id)
        self.acknowledged = {known: answer for known, answer in self.acknowledged.items() if known[0] != client_id}

    def collect(self):
        """Take the answers that have come."""
        for device in self.devices.values():
            exchange = device.exchange
            if exchange is not None and exchange.is_over:
                error = exchange.task.exception()
                if isinstance(error, Crash):
                    raise error
                device.exchange = None
                assert error is None, f"the application raised {error!r}"
                self.take(device, exchange)
        for name, stream in self.streams:
            self.look(name, stream)
        self.streams = [(name, stream) for name, stream in self.streams if not stream.is_over]

    def take(self, device, exchange):
        """A client reads its answer."""
        status = exchange.status if exchange.is_answered else 0
        is_upload = device.asked not in ("model", "me", FORGOTTEN)
        assert status < 500 or status == 503, f"status {status}"
        if status == 401:
            device.token = device.pending = None
        if status != 200:
            known = (200, 401, *AGAIN, *((409, 410) if is_upload else ()))
            is_left = device.asked == FORGOTTEN or (exchange.is_cut and status == 400)
            assert status in known or is_left, f"status {status}: {exchange.body!r}"
            if status == 410 or (status == 409 and "retry-after" not in exchange.headers):
                device.pending = device.last = device.epoch = None
            return
        if device.asked in ("me", FORGOTTEN):
            return
        declared = wire.sha256_in(exchange.headers[wire.DIGEST.lower()])
        assert declared == hashlib.sha256(exchange.body).hexdigest(), "a reply does not have its digest"
        head = wire.ReplyHead.from_headers(exchange.headers)
        if is_upload:
            self.acknowledge(device, device.asked, head, exchange.body)
        if device.token is not None and (not is_upload or device.pending is None):
            device.epoch = head.epoch

    def acknowledge(self, device, key, head, body):
        """An upload was answered: it counts, once, and is answered like this for ever."""
        assert (device.name, key) not in self.withdrawn, f"{device.name} {key} was withdrawn, and then acknowledged"
        if device.pending is not None and device.pending[0] == key:
            device.last, device.pending = device.pending, None
        if device.token is None:  # forgotten or revoked while the answer came
            return
        before = self.acknowledged.setdefault((device.name, key), (head.outcome, body))
        assert before == (head.outcome, body), "an upload that was sent again has another answer"

    def look(self, name, stream):
        """What somebody who watches sees."""
        assert not stream.is_over or stream.task.exception() is None, repr(stream.task.exception())
        pieces = [piece for piece in stream.body.split(b"\n\n") if piece.startswith(b"data: ")]
        events = [json.loads(piece.partition(b"\n")[0].removeprefix(b"data: ")) for piece in pieces]
        numbers = [event["number"] for event in events]
        assert numbers == sorted(set(numbers)), "an event comes twice, or too late"
        if name:
            assert {event["client_id"] for event in events if "client_id" in event} <= {name}, "it sees another's name"

    def check(self):
        """Everything that must hold at any moment."""
        entries = self.store.entries(0, 10**6)
        found = {(entry.client_id, entry.key): entry.outcome for entry in entries if entry.client_id}
        assert len(found) == sum(bool(entry.client_id) for entry in entries), "an upload counts twice"
        assert not self.withdrawn & set(found), "an upload was committed after its client was forgotten or revoked"
        for known, (outcome, _) in self.acknowledged.items():
            expected = (outcome, None) if outcome == "rejected" else (outcome,)  # of those the last one stays
            assert found.get(known) in expected, f"{known} was acknowledged, and is {found.get(known)}"
        for name in self.forgotten:
            assert self.store.client(name) is None, f"{name} was forgotten, and is there"
        moved = [entry.epoch for entry in entries if entry.outcome == "applied"]
        epochs = [entry.epoch for entry in entries]
        assert len(moved) == len(set(moved)), "an epoch is double"
        assert sorted(set(epochs)) == list(range(1, (epochs or [0])[-1] + 1)), "an epoch is missing"
        assert (epochs or [0])[-1] == self.engine.state.epoch, "the journal and the state differ"

    def settle(self):
        """Let everybody finish what is under way."""
        self.disk.disarm()
        for _, stream in self.streams:
            stream.cut()
        for _ in range(300):
            for device in self.devices.values():
                while device.exchange and device.exchange.pieces:
                    device.exchange.deliver()
            self.loop.turn()
            self.threads.drain()
            self.engine.step_evaluate(8)
            self.engine.step_apply(8)
            self.collect()
            if not self.streams and not any(device.exchange for device in self.devices.values()):
                return
        raise AssertionError("a request is never answered")

    def finish(self):
        """Settle, forget those who are to be forgotten, stop in order, start again, verify."""
        self.settle()
        self.now += 2.0
        self.engine.step_apply(0)
        self.restart("")
        self.check()
        assert self.store.asked_to_forget() == []
        assert verify(self.store).findings == []
        self.store.close()


def simulate(place: Path, seed: int, steps: int = 800) -> World:
    """Run one seed; an AssertionError names the seed and its last steps."""
    with pytest.MonkeyPatch.context() as patched:
        world = World(place, seed, patched)
        try:
            for number in range(steps):
                world.step()
                if number % 10 == 0:
                    with world.calm():
                        world.check()
            world.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {len(world.trace)}: {error}; last: {world.trace[-8:]}") from error
        finally:
            for loop in world.loops:
                loop.close()
    return world
