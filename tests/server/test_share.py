"""Uploads that the guard's share refuses when they are evaluated, and admits when their turn comes."""

import hashlib
import threading

import pytest
import torch

from cdfl import wire
from cdfl.core import Settings
from cdfl.core.guard import OFTEN
from cdfl.server.engine import Engine
from cdfl.server.store import Store
from cdfl.server.store_records import Claim, Retention
from cdfl.server.submission import Submission
from cdfl.server.verify import verify

from .toy import LAYOUT, TARGETS, evaluate, first_state, keep

GUARDED = Settings(guard=True, max_staleness=None)


class Gate:
    """Evaluates uploads once it is open."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.evaluated = []

    def __call__(self, models, clusters):
        return evaluate(models, clusters)

    def of_each(self, vectors):
        self.open.wait(10)
        self.evaluated += vectors
        return torch.stack([evaluate(vector.expand(3, -1), torch.arange(3)) for vector in vectors]).double()


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path, retention=Retention(keep_snapshots=100, keep_uploads=True)) as store:
        store.begin(first_state(), LAYOUT, GUARDED)
        yield store


class Clients:
    """Clients of one engine; each holds what it was sent last."""

    def __init__(self, engine, store):
        self.engine, self.store, self.held, self.count = engine, store, {}, 0

    def begin(self, name, length=0.2):
        """Send an upload; do not wait for the answer."""
        if name not in self.held:
            self.hold(name, self.engine.join(Claim(name)))
        model, epoch = self.held[name]
        self.count += 1
        target = TARGETS[self.count % 3].expand(LAYOUT.size)
        vector = model + length * (target - model) + 0.01 * (self.count % 7)
        body = wire.encode_model(vector, LAYOUT)
        record = self.store.client(name, epoch)
        made = Submission(
            name,
            f"key-{self.count}",
            epoch,
            hashlib.sha256(body).hexdigest(),
            vector,
            keep(self.store, body),
            Claim(name, since=record.since),
            sent=record.sent,
        )
        made.client = record.memory
        return made, self.engine.submit(made)

    def hold(self, name, answer):
        self.held[name] = wire.decode_model(b"".join(answer.body), LAYOUT), answer.head.epoch

    def upload(self, name):
        answer = self.begin(name)[1].result(10)
        self.hold(name, answer)
        return answer.head


@pytest.mark.parametrize("length", [0.2, 5.0], ids=["as usual", "bounded"])
def test_what_is_admitted_after_all_is_verified(store, length):
    gate = Gate()
    engine = Engine(first_state(), LAYOUT, GUARDED, store, gate, evaluate)
    try:
        clients = Clients(engine, store)
        others = [f"car-{number}" for number in range(12)]
        for _ in range(3):
            for name in others:
                clients.upload(name)
        heads = [clients.upload("fast")]
        while heads[-1].outcome == "applied":
            heads.append(clients.upload("fast"))
        assert OFTEN in heads[-1].detail
        gate.open.clear()
        waiting = [clients.begin(name)[1] for name in others]  # each earns the fast client a part of an upload
        late, answer = clients.begin("fast", length)
        gate.open.set()
        for each in waiting:
            each.result(10)
        assert answer.result(10).head.outcome == "applied"
        assert not any(vector is late.local_model for vector in gate.evaluated)  # it was skipped
        clients.upload(others[0])
        store.snapshot(engine.state)
    finally:
        engine.close()
    found = verify(store)
    assert found.findings == []
    assert (found.last, found.snapshots) == (engine.state.epoch, 1)
