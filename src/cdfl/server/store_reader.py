"""Read a store, as its owner or beside it, from any thread; recover the state from it."""

import json
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
import torch
from torch import Tensor

from cdfl.core import (
    GIVEN,
    Layout,
    NotFiniteError,
    Replay,
    Reply,
    ServerState,
    Settings,
    Upload,
    defence_of,
    estimator_of,
    server_update,
)
from cdfl.core.guard import is_healthy
from cdfl.server import queries, tables
from cdfl.server.blobs import Blobs, digest_in, digest_of
from cdfl.server.database import Database
from cdfl.server.recorded_losses import Playback
from cdfl.server.store_errors import StoreDamaged, StoreError
from cdfl.server.store_records import ClientRecord, Entry, Recovered, Snapshot, tensor
from cdfl.wire import decode_experts, decode_model, expert_type

PAGE = 256  # entries read at a time
REMEDY = "restore it from a backup, or go back with `cdfl rollback`"


class Reader:
    """A store without the methods that change it. Every method may raise StoreUnavailable."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self.database = database
        self.blobs = blobs
        self.journal_start = 0  # entries before this one may be deleted

    # -- the state

    def recover(self, progress: Callable[[int, int], None] | None = None) -> Recovered | None:
        """Return the newest snapshot with the journal after it replayed; None if the store is empty.

        `progress` is called with the number of replayed entries and the total.
        """
        while kept := self.snapshots():
            try:
                return self._recover_from(kept[-1], progress or (lambda done, total: None))
            except StoreDamaged:
                if self.snapshots() == kept:  # otherwise a running server has deleted what was about to be read
                    raise
        return None

    def _recover_from(self, newest: Snapshot, progress: Callable[[int, int], None]) -> Recovered:
        layout = self.layout()
        state = self.load_state(newest, layout)
        total = self.newest_epoch() - newest.epoch
        with self.reading() as connection:
            number = queries.last_number(connection, newest.epoch)
        for entry in self.all_entries(newest.epoch):
            number = entry.number
            if entry.epoch > state.epoch:  # others changed nothing
                state, _ = self.replay(state, entry, newest.settings, layout)
                progress(state.epoch - newest.epoch, total)
        return Recovered(state, layout, newest.settings, replayed=state.epoch - newest.epoch, number=number)

    def replay(
        self, state: ServerState, entry: Entry, settings: Settings, layout: Layout, *, anew: bool = False
    ) -> tuple[ServerState, Reply]:
        """Return the state after an entry and the reply to it, through `core.server_update`.

        Recovery repeats the recorded decision, so no bit depends on the machine. `anew=True` decides again from the
        recorded losses, as the server did.
        """
        if entry.epoch > state.epoch + 1:
            raise StoreDamaged(f"entry {state.epoch + 1} is missing, the next one is {entry.epoch}", "restore a backup")
        if entry.client_id == "":
            raise StoreDamaged(f"entry {entry.epoch} cannot be replayed: its client was forgotten", "restore a backup")
        upload = self._upload_of(state, entry, settings, layout, is_needed=anew or entry.outcome == "applied")
        cluster_losses = tensor(entry.cluster_losses)
        recorded = Replay(
            mixture=tensor(entry.mixture),
            rates=tensor(entry.rates),
            cluster_losses=cluster_losses,
            measures=entry.measures,
            verdict=entry.verdict,
            estimator=estimator_of(settings),
            defence=defence_of(settings),
        )
        try:
            after, reply = server_update(
                state,
                upload,
                settings,
                Playback(entry.evaluated),
                entry.client_before,
                estimator=(GIVEN if entry.own_mixture else None) if anew else recorded,
                defence=None if anew else recorded,
            )
        except NotFiniteError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError) as error:  # numbers that no server has written
            raise StoreDamaged(f"entry {entry.epoch} cannot be replayed: {error}", "restore a backup") from error
        if not anew and (reply.outcome, after.epoch) != (entry.outcome, entry.epoch):
            raise StoreDamaged(
                f"the upload of entry {entry.epoch} was {entry.outcome}; the stored settings make it {reply.outcome}"
            )
        return after, reply

    def _upload_of(
        self, state: ServerState, entry: Entry, settings: Settings, layout: Layout, *, is_needed: bool
    ) -> Upload:
        """Return the upload of an entry.

        Recovery does not need the model of an upload that moved nothing; it may be deleted, so another one replaces it.
        """
        if not is_needed:
            model = state.cluster_models[0]
            return Upload(model, entry.base_epoch, entry.client_id, base_model=model, time=entry.received)
        if entry.upload is None:
            raise StoreDamaged(f"the upload of entry {entry.epoch} is missing")
        needs_base = settings.rates.cluster_step == "along" or defence_of(settings).needs_base
        if entry.base is None and needs_base:
            raise StoreDamaged(f"the model that the upload of entry {entry.epoch} was trained from is missing")
        local_model = self.read_model(entry.upload, layout)
        base_model = None if entry.base is None else self.read_model(entry.base, layout)
        # The journal has the losses of the bounded upload; those of one that was bounded are on the tape.
        is_bounded = any(factor != 1 for factor in entry.verdict.bounds)
        losses = tensor(entry.losses) if entry.losses and not is_bounded else None
        return Upload(
            local_model,
            entry.base_epoch,
            entry.client_id,
            losses=losses,
            mixture=tensor(entry.own_mixture) if entry.own_mixture else None,
            base_model=base_model,
            time=entry.received,
        )

    def snapshots(self) -> list[Snapshot]:
        """Return all snapshots, oldest first."""
        with self.reading() as connection:
            return queries.all_snapshots(connection)

    def snapshot_at(self, epoch: int) -> Snapshot:
        """Return the snapshot of an epoch."""
        kept = {snapshot.epoch: snapshot for snapshot in self.snapshots()}
        if epoch not in kept:
            raise ValueError(f"there is no snapshot of epoch {epoch}; there are those of {', '.join(map(str, kept))}")
        return kept[epoch]

    def load_state(self, snapshot: Snapshot, layout: Layout) -> ServerState:
        """Return the state of a snapshot."""
        return snapshot.restore(torch.stack([self.read_model(name, layout) for name in snapshot.models]), layout)

    def fault_of(self, snapshot: Snapshot) -> str | None:
        """Return why a snapshot cannot be read; None if it can."""
        try:
            self.load_state(snapshot, self.layout())
        except StoreDamaged as error:
            return error.what
        return None

    def healthy_epochs(self) -> list[int]:
        """Return the epochs of snapshots whose clusters are about as good as in the best snapshot, oldest first."""
        kept, nothing = self.snapshots(), torch.empty(0)
        states = {
            each.epoch: each.restore(nothing, self.layout()) for each in sorted(kept, key=lambda each: each.mean_loss)
        }
        best, *_ = states.values()
        usual = next((state for state in states.values() if len(state.defence_memory)), best)
        return sorted(epoch for epoch, state in states.items() if is_healthy(state, best, usual))

    def healthy_epoch(self) -> int:
        """Return the epoch of the newest snapshot that is healthy and can be read."""
        for epoch in reversed(self.healthy_epochs()):
            if self.fault_of(self.snapshot_at(epoch)) is None:
                return epoch
        raise StoreError("no healthy snapshot can be read; restore a backup")

    def layout(self) -> Layout:
        """Return the layout of the stored model."""
        with self.reading() as connection:
            layout = queries.layout(connection)
        if layout is None:
            raise StoreError("the store is empty; start a server with `cdfl serve` first")
        return layout

    # -- the journal

    def newest_epoch(self) -> int:
        """Return the epoch of the last entry, also if another process owns the store."""
        with self.reading() as connection:
            return queries.last_epoch(connection) or 0

    def newest_number(self) -> int:
        """Return the number of the last entry."""
        with self.reading() as connection:
            return queries.last_number(connection)

    def entries(self, after: int, limit: int = 1000) -> list[Entry]:
        """Return entries with numbers above `after`, oldest first."""
        with self.reading() as connection:
            return queries.entries(connection, after, limit)

    def all_entries(self, epoch: int) -> Iterator[Entry]:
        """Yield all entries with epochs above `epoch`, oldest first."""
        with self.reading() as connection:
            after = queries.last_number(connection, epoch)
        while page := self.entries(after, PAGE):
            yield from page
            after = page[-1].number

    def read_reply(self, entry: Entry) -> bytes | None:
        """Return the reply to an entry, byte for byte; None if it is not kept. StoreDamaged if it has changed."""
        return None if entry.reply is None else self.read_sent(entry.reply)

    def read_sent(self, name: str) -> bytes | None:
        """Return a model that a client was sent, byte for byte; None if deleted, StoreDamaged if it has changed."""
        data = self.blobs.read(name)
        if data is not None:
            check_digest(name, data)
        return data

    def read_sent_experts(self, name: str, layout: Layout, num_clusters: int) -> tuple[Tensor, bytes] | None:
        """Return the experts (K, P) that a client was sent, and their bytes; None if deleted or if it is one model."""
        data = self.blobs.view(name)
        dtype = None if data is None else expert_type(data, layout, num_clusters)
        if data is None or dtype is None:
            return None
        check_digest(name, data)
        body = bytes(data)
        return decode_experts(body, layout, num_clusters, dtype), body

    def router(self) -> bytes | None:
        """Return the router's bytes; None if there is none yet."""
        with self.reading() as connection:
            name = tables.get(connection, "router")
        return None if name is None else bytes(self._read_exactly(name))

    def read_model(self, name: str, layout: Layout) -> Tensor:
        """Return the model in a blob; StoreDamaged unless it has the sha256 that its name says."""
        return decode_model(self._read_exactly(name), layout, is_checked=True)

    def _read_exactly(self, name: str) -> bytearray | mmap.mmap:
        data = self.blobs.view(name)
        if data is None:
            raise StoreDamaged(f"the blob {name} is missing", REMEDY)
        check_digest(name, data)
        return data

    # -- clients

    def client(self, client_id: str, epoch: int | None = None, key: str | None = None) -> ClientRecord | None:
        """Return what is known of a client, of `epoch` and of `key`; None for an unknown client.

        An epoch before the start of the journal counts as not sent: the entry that shows whether the client has
        uploaded from it already may be deleted.
        """
        known = None if epoch is None or epoch < self.journal_start else epoch
        with self.reading() as connection:
            return queries.client(connection, client_id, known, key)

    def clients(self, after: str = "", limit: int = 1000) -> list[ClientRecord]:
        """Return clients with names above `after`, by name, each with its newest entry."""
        with self.reading() as connection:
            return queries.all_clients(connection, after, limit)

    def num_clients(self) -> int:
        """Return how many clients are known."""
        with self.reading() as connection:
            return queries.num_clients(connection)

    def knows(self, client_id: str) -> bool:
        """Return whether anything is stored about a client, including a token."""
        with self.reading() as connection:
            return queries.knows(connection, client_id)

    def asked_to_forget(self) -> list[str]:
        """Return the clients that `cdfl forget` asked a running server to forget."""
        with self.reading() as connection:
            return queries.asked_to_forget(connection)

    def fingerprints(self) -> dict[str, str] | None:
        """Return what the losses in the store depend on; None if nothing was recorded."""
        with self.reading() as connection:
            text = tables.get(connection, "fingerprints")
        return None if text is None else dict(json.loads(text))

    def all_blobs(self) -> list[str]:
        """Return the names of all blobs that the tables refer to."""
        with self.reading() as connection:
            return sorted(queries.all_blobs(connection))

    def check_blob(self, name: str) -> bool:
        """Return whether a blob is there; StoreDamaged if it has changed."""
        data = self.blobs.view(name)
        if data is not None:
            check_digest(name, data)
        return data is not None

    @contextmanager
    def moment(self) -> Iterator[sa.Connection]:
        """Lend a connection that sees the database as it is at one moment."""
        self._resolve()
        with self.database.moment() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Lend a connection for reading."""
        self._resolve()
        with self.database.read() as connection:
            yield connection

    def _resolve(self) -> None:
        """Undo an uncertain commit before a read; only an owner has one."""


def check_digest(name: str, data: bytes | bytearray | mmap.mmap) -> None:
    """Raise StoreDamaged unless a blob has the sha256 that its name says."""
    found, expected = digest_of(data), digest_in(name)
    if found != expected:
        what = f"the blob {name} is damaged: its sha256 is {found[:12]}..., expected {expected[:12]}..."
        raise StoreDamaged(what, REMEDY)
