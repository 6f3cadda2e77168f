"""Clients of an engine with the guard, without a network."""

import hashlib
import threading

import torch

from cdfl import wire
from cdfl.core import Settings
from cdfl.server.store_records import Claim
from cdfl.server.submission import Submission

from .toy import LAYOUT, TARGETS, evaluate, keep

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
            received=float(self.count),
        )
        made.client = record.memory
        return made, self.engine.submit(made)

    def hold(self, name, answer):
        self.held[name] = wire.decode_model(b"".join(answer.body), LAYOUT), answer.head.epoch

    def upload(self, name):
        answer = self.begin(name)[1].result(10)
        self.hold(name, answer)
        return answer.head
