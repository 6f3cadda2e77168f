"""A deterministic simulation of the service: one seeded scheduler, the real engine, the real store on a real SQLite.

Every step of the service is a step of the scheduler: a client asks for a model, an upload is checked, is kept and waits
in the queue; the evaluating thread and the applying thread take what waits; maintenance runs; the clock moves; the disk
fails; the command line creates and revokes tokens and asks for clients to be forgotten; the process dies and starts
again. The order follows from the seed alone, so a failing seed replays.
"""

import hashlib
import queue
import random
import time
from contextlib import suppress
from pathlib import Path

import torch

from cdfl import wire
from cdfl.core import Settings
from cdfl.server.auth import Access, Tokens
from cdfl.server.engine import Engine
from cdfl.server.errors import StoreUnavailable
from cdfl.server.maintenance import Maintenance
from cdfl.server.records import Claim
from cdfl.server.store import Store
from cdfl.server.uploads import Uploads
from cdfl.server.verify import verify

from .toy import LAYOUT, TARGETS, evaluate, first_state, same_state

SETTINGS = Settings(guard=True, max_staleness=20)
NAMES = [f"car-{number}" for number in range(4)]


class Still(Engine):
    """An engine whose threads do not run: the scheduler calls what they would do."""

    def _evaluate_all(self):
        """Nothing: see `step_evaluate`."""

    def _apply_all(self):
        """Nothing: see `step_apply`."""

    def step_evaluate(self, most):
        """What the evaluating thread does with the next uploads."""
        batch = _taken(self._waiting, most)
        self._evaluate(batch)
        for submission in batch:
            if not submission.answer.done():
                self._evaluated.put(submission)

    def step_apply(self, most):
        """What the applying thread does with the next uploads."""
        group = _taken(self._evaluated, most)
        try:
            self._apply_group(group)
            if self.outage.is_on:
                self.store.check()
                self.outage.end()
            self.maintenance.run_due(self.state)
        except StoreUnavailable as error:
            self.outage.begin(error)


class Proxy:
    """Evaluates as the toy does."""

    def __call__(self, models, clusters):
        return evaluate(models, clusters)

    def of_each(self, vectors):
        """The losses on every set."""
        every = torch.arange(len(TARGETS))
        return torch.stack([evaluate(vector.expand(len(TARGETS), -1), every) for vector in vectors])


class World:
    """One run of the simulation."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.random, self.now = place, random.Random(seed), 0.0  # noqa: S311
        self.torch = torch.Generator().manual_seed(seed)
        self.trace: list[str] = []
        self.tokens: dict[str, str] = {}  # client -> a valid token
        self.epochs: dict[str, int] = {}  # client -> epoch of the model it holds
        self.pending: list = []  # (client, key, submission)
        self.acknowledged: dict[tuple[str, str], str] = {}  # (client, key) -> outcome
        self.forgotten: set[str] = set()  # since they last joined
        self.withdrawn: set[tuple[str, str]] = set()  # uploads that must never be committed
        self.keys = 0
        self.start()
        for name in NAMES:
            self.create(name)

    # -- the process

    def start(self):
        """Start the server: recover, or begin."""
        self.store = Store.open(self.place)
        recovered = self.store.recover()
        if recovered is None:
            state = first_state()
            self.store.begin(state, LAYOUT, SETTINGS)
        else:
            state = recovered.state
        self.engine = Still(state, LAYOUT, SETTINGS, self.store, Proxy(), evaluate, snapshot_every=7)
        self.engine.maintenance = Maintenance(self.store, snapshot_every=7, clock=lambda: self.now)
        self.engine.maintenance._worker = _Inline()
        self.uploads = Uploads(self.engine)
        self.access = Access(Tokens(self.store.database))
        self.commit = self.store.commit

    def stop(self, *, crash):
        """Stop the server, or kill it: what waits is lost."""
        if not crash:
            while not self.engine._waiting.empty() or not self.engine._evaluated.empty():
                self.engine.step_evaluate(8)
                self.engine.step_apply(8)
            self.engine.maintenance.finish(self.engine.state)
        self.collect()
        self.pending = []
        self.store.close()

    # -- steps

    def step(self):
        """One step of somebody, chosen by the seed."""
        chances = {
            self.join: 3, self.upload: 6, self.evaluate: 4, self.apply: 4, self.tick: 2, self.create: 3,
            self.revoke: 0.5, self.forget: 0.5, self.fail: 0.5, self.restart: 0.3,
        }  # fmt: skip
        (chosen,) = self.random.choices(list(chances), list(chances.values()))
        name = self.random.choice(NAMES)
        self.trace.append(f"{chosen.__name__} {name}")
        with suppress(wire.WireError, StoreUnavailable):
            chosen(name)
        self.collect()

    def claim(self, name) -> Claim:
        return self.access.identify({"Authorization": f"Bearer {self.tokens.get(name, 'none')}"})

    def join(self, name):
        answer = self.engine.join(self.claim(name))
        self.epochs[name] = answer.head.epoch
        self.forgotten.discard(name)

    def upload(self, name):
        if any(client == name for client, _, _ in self.pending):
            return
        claim = self.claim(name)
        if name not in self.epochs:
            self.join(name)
        self.keys += 1
        key, base_epoch = f"key-{self.keys}", self.epochs[name]
        record = self.uploads._check(name, key, base_epoch)
        noise = torch.randn(LAYOUT.size, generator=self.torch)
        body = wire.encode_model(TARGETS[self.random.randrange(len(TARGETS))] + 0.3 * noise, LAYOUT)
        spool = self.store.spool()
        spool.write_bytes(body)
        claim = Claim(claim.client_id, claim.token, record.since)
        digest = hashlib.sha256(body).hexdigest()
        submission = self.uploads._keep(record, claim, key, base_epoch, spool, digest)
        self.engine.submit(submission)
        self.pending.append((name, key, submission))

    def evaluate(self, _):
        self.engine.step_evaluate(self.random.randint(1, 4))

    def apply(self, _):
        self.engine.step_apply(self.random.randint(1, 4))

    def tick(self, _):
        """Time passes; maintenance is due."""
        self.now += self.random.choice([0.5, 2.0, 90.0, 700.0])
        self.engine.step_apply(0)

    def create(self, name):
        self.tokens[name] = self.access.tokens.create(name)

    def revoke(self, name):
        self.access.tokens.revoke(name)
        self.tokens.pop(name, None)
        self.withdraw(name)

    def forget(self, name):
        """The command line asks; the server does it at its next maintenance."""
        self.store.ask_to_forget(name)
        self.now += 2.0
        self.engine.maintenance.run_due(self.engine.state)
        self.withdraw(name)
        self.forgotten.add(name)
        self.tokens.pop(name, None)
        self.epochs.pop(name, None)

    def withdraw(self, name):
        self.withdrawn |= {(client, key) for client, key, each in self.pending if client == name}

    def fail(self, _):
        """The disk fails at the next commit."""

        def broken(group, claims=()):
            self.store.commit = self.commit
            for entry, _ in group:
                self.store.drop(entry.upload, entry.base)
            raise StoreUnavailable("the disk is full")

        self.store.commit = broken

    def restart(self, _):
        self.stop(crash=self.random.random() < 0.7)
        state = self.engine.state
        self.start()
        assert same_state(self.engine.state, state), "a restart changed the state"

    # -- what must hold

    def collect(self):
        """Take the answers that have come."""
        for client, key, submission in self.pending:
            if submission.answer.done() and submission.answer.exception() is None:
                head = submission.answer.result().head
                self.acknowledged[client, key] = head.outcome
                assert (client, key) not in self.withdrawn, f"{client} {key} was withdrawn, and then acknowledged"
                self.epochs[client] = head.epoch
        self.pending = [each for each in self.pending if not each[2].answer.done()]

    def check(self):
        """Everything that must hold at any moment."""
        entries = self.store.entries(0, 10**6)
        found = [(entry.client_id, entry.key) for entry in entries if entry.client_id]
        assert len(found) == len(set(found)), "an upload counts twice"
        assert not self.withdrawn & set(found), "an upload was committed after its client was forgotten or revoked"
        for name in self.forgotten:
            assert self.store.client(name) is None, f"{name} was forgotten, and is there"
            assert name not in {entry.client_id for entry in entries}
        applied = [entry.epoch for entry in entries if entry.outcome == "applied"]
        assert applied == list(range(1, self.engine.state.epoch + 1)), "an epoch is missing or double"

    def finish(self):
        """Stop in order, start again, verify."""
        self.restart("")
        self.check()
        assert verify(self.store).findings == []
        self.store.close()


class _Inline:
    """A pool that works at once, in the scheduler's step."""

    def submit(self, function, *arguments):
        """Call the function now."""
        function(*arguments)

    def shutdown(self):
        """Nothing waits."""


def _taken(source, most):
    taken = []
    with suppress(queue.Empty):
        while len(taken) < most:
            submission = source.get_nowait()
            if submission is not None:
                taken.append(submission)
    return taken


def simulate(place: Path, seed: int, steps: int = 120) -> World:
    """Run one seed; an AssertionError names the seed and its last steps."""
    world = World(place, seed)
    try:
        for _ in range(steps):
            world.step()
            world.check()
        world.finish()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, step {len(world.trace)}: {error}; last: {world.trace[-8:]}") from error
    return world


def rate(place: Path, seeds: int) -> float:
    """Steps a second, each an interleaving of its own."""
    begun, steps = time.perf_counter(), 0
    for seed in range(seeds):
        steps += len(simulate(place / str(seed), seed).trace)
    return steps / (time.perf_counter() - begun)
