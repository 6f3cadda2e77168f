"""A server without a network: takes uploads one by one through `core`, and keeps them in a store."""

import hashlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cdfl.core import NEWCOMER, Layout, ServerState, Settings, Upload, initial_state, join, server_update
from cdfl.server.recorded_losses import Recording
from cdfl.server.store import Store
from cdfl.server.store_records import Entry
from cdfl.wire import body_parts, encode_model

LAYOUT = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))  # 12 parameters, 4 statistics
SETTINGS = Settings(max_staleness=6)
TARGETS = torch.tensor([[0.0], [1.0], [2.0]])  # what the three clusters are about


def evaluate(models: torch.Tensor, clusters: torch.Tensor) -> torch.Tensor:
    return (models - TARGETS[clusters]).square().mean(dim=1) + 0.1


def first_state(seed: int = 0) -> ServerState:
    noise = torch.randn(len(TARGETS), LAYOUT.size, generator=torch.Generator().manual_seed(seed))
    return initial_state(TARGETS + 0.1 * noise, evaluate, LAYOUT.num_parameters)


class Toy:
    """The state, and what clients were last told."""

    def __init__(self, store: Store, seed: int = 0, settings: Settings = SETTINGS) -> None:
        self.store = store
        self.settings = settings
        self.random = torch.Generator().manual_seed(seed)
        recovered = store.recover()
        if recovered is None:
            self.state = first_state(seed)
            store.begin(self.state, LAYOUT, settings)
        else:
            self.state = recovered.state

    def upload(
        self, *client_ids: str, key: str | None = None, base_epoch: int | None = None, away: float = 0.0
    ) -> list[Entry]:
        """One group: an upload of each of these clients; harmful ones are `away` from all targets."""
        state, group = self.state, []
        for client_id in client_ids:
            name = key or f"key-{self.store.number + len(group)}"
            state, entry, reply = self.take(state, client_id, name, base_epoch, group, away)
            group.append((entry, body_parts(reply.personal_model, LAYOUT)))
        entries = self.store.commit(group)
        self.state = state
        return [replace(entry, number=made.number) for (entry, _), made in zip(group, entries, strict=True)]

    def take(self, state, client_id, key, base_epoch=None, group=(), away=0.0):
        """What a server does with an upload before it commits it; `group` is what it will commit with it."""
        base_epoch = self.state.epoch if base_epoch is None else base_epoch
        target = TARGETS[int(torch.randint(len(TARGETS), (1,), generator=self.random))]
        trained = target + 0.3 * torch.randn(LAYOUT.size, generator=self.random)
        if away:
            trained = torch.ones(LAYOUT.size)  # always the same: what is rejected once is rejected again
            trained[: LAYOUT.num_parameters] = 5 * away
        body = encode_model(trained, LAYOUT)
        model = torch.frombuffer(bytearray(body[-LAYOUT.size * 4 :]), dtype=torch.float32)
        losses = evaluate(model.expand(len(TARGETS), -1), torch.arange(len(TARGETS)))
        client = self.memory_of(client_id, group)
        base, base_model = self.base(state, client_id, base_epoch, client)
        upload = Upload(model, base_epoch, client_id, losses=losses, base_model=base_model)
        upload, tape = upload.replace(time=time.time()), Recording()
        after, reply = server_update(state, upload, self.settings, tape.of(evaluate), client)
        digest = hashlib.sha256(body).hexdigest()
        entry = Entry.of(
            after,
            upload,
            client,
            reply,
            key=key,
            digest=digest,
            received=upload.time,
            upload=self.store.keep(spooled(self.store, body), digest),
            base=base,
            evaluated=tape.numbers,
        )
        return after, entry, reply

    def base(self, state, client_id, base_epoch, client):
        """What an upload was trained from: what its client was sent or, if that is gone, what it would be now."""
        if self.settings.rates.cluster_step == "towards" and not self.settings.guard:
            return None, None
        if (base := keep_sent(self.store, client_id, base_epoch)) is not None:
            return base, self.store.read_model(base, LAYOUT)
        model = join(state, self.settings, client).personal_model
        return self.store.keep_base(body_parts(model, LAYOUT)), model

    def join(self, client_id: str) -> bytes:
        """A client asks for a model and gets it."""
        body = encode_model(join(self.state, self.settings, self.memory_of(client_id)).personal_model, LAYOUT)
        record = self.store.client(client_id, self.state.epoch)
        if record is None or record.sent is None:
            self.store.record_sent(client_id, self.state.epoch, body)
        return body

    def memory_of(self, client_id, group=()):
        known = self.store.client(client_id)
        memories = [entry.client_after for entry, _ in group if entry.client_id == client_id]
        return [known.memory if known else NEWCOMER, *memories][-1]

    def snapshot(self) -> None:
        self.store.snapshot(self.state)


def some_entry(epoch: int, client_id: str = "car-7", **changes: Any) -> Entry:
    """An entry with made-up numbers, for tests that look at rows only."""
    made_up = Entry(
        epoch=epoch,
        client_id=client_id,
        key=f"key-{epoch}",
        digest="d" * 64,
        outcome="deprecated",
        received=time.time(),
        base_epoch=epoch - 1,
        staleness=1,
        mixture=(0.1, 0.2, 0.7),
        rates=(0.0, 0.0, 0.0),
        cluster_losses=(0.1, 0.2, None),
    )
    return replace(made_up, **changes)


def find(store: Store, client_id: str, key: str) -> Entry | None:
    """The entry of an idempotency key."""
    record = store.client(client_id, key=key)
    return record and record.repeated


def was_sent(store: Store, client_id: str, epoch: int) -> bool:
    """Whether this client was sent a model of this epoch."""
    record = store.client(client_id, epoch)
    return record is not None and record.was_sent


def keep_sent(store: Store, client_id: str, epoch: int) -> str | None:
    """Keep what this client was sent at this epoch as the base of an upload."""
    record = store.client(client_id, epoch)
    return store.keep_sent(record.sent) if record and record.sent else None


def keep(store: Store, body: bytes) -> str:
    """Keep a body as an upload."""
    return store.keep(spooled(store, body), hashlib.sha256(body).hexdigest())


def spooled(store: Store, body: bytes) -> Path:
    path = store.spool()
    path.write_bytes(body)
    return path


def same_state(one: ServerState, other: ServerState) -> bool:
    parts = ("cluster_models", "cluster_losses", "cluster_epochs", "estimator_memory", "defence_memory")
    return one.epoch == other.epoch and all(
        getattr(one, part).numpy().tobytes() == getattr(other, part).numpy().tobytes() for part in parts
    )


def stored_blobs(store: Store, kind: str = "") -> list[str]:
    """All blobs of a kind, once what is deleted in the background has been."""
    store._cleaner.submit(lambda: None).result()
    return sorted(name for name in store.blobs.names() if name.startswith(kind))


def reject(toy: Toy, client_id: str = "bad") -> Entry:
    """Make an entry that is rejected: others upload until something is usual, then this client does harm."""
    toy.settings = toy.settings.replace(guard=True)
    toy.store.snapshot(toy.state, toy.settings)
    for number in range(8):
        toy.upload(f"good-{number}")
    for _ in range(9):
        (entry,) = toy.upload(client_id, away=9.0)
        if entry.outcome == "rejected":
            return entry
    raise AssertionError("nothing was rejected")
