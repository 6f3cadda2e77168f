"""What can be read from a store, by its owner or beside it, from any thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from torch import Tensor

from cdfl.core import Layout
from cdfl.server import rows, schema
from cdfl.server.blobs import Blobs, digest_in
from cdfl.server.database import Database
from cdfl.server.journal import ClientRecord, Entry, Recovered, Snapshot, StoreDamaged, StoreError
from cdfl.server.replay import replay
from cdfl.server.snapshots import load_state, read_exactly
from cdfl.wire import decode_model

PIECE = 256  # entries read at a time


class Reader:
    """A store without what changes it. Everything may raise StoreUnavailable."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self.database = database
        self.blobs = blobs
        self.journal_start = 0  # entries before this one may be gone

    def recover(self, progress: Callable[[int, int], None] | None = None) -> Recovered | None:
        """The newest snapshot with the journal after it replayed; None: nothing was begun yet.

        `progress` is told how many of how many entries are done.
        """
        while kept := self.snapshots():
            try:
                return self._replayed(kept[-1], progress)
            except StoreDamaged:
                if self.snapshots() == kept:  # else a running server has deleted what was about to be read
                    raise
        return None

    def _replayed(self, newest: Snapshot, progress: Callable[[int, int], None] | None) -> Recovered:
        layout = self.layout()
        state = load_state(newest, layout, self.blobs)
        total = self.newest_epoch() - newest.epoch
        for entry in self.all_entries(newest.epoch):
            local_model, base_model = self.read_upload(entry, layout), self.read_base(entry, layout)
            state, reply = replay(state, entry, local_model, newest.settings, base_model=base_model)
            if entry.outcome == "applied" and tuple(reply.rates.tolist()) != entry.rates:
                raise StoreDamaged(
                    f"entry {entry.epoch} moved the clusters by {entry.rates}, but the stored settings give "
                    f"{tuple(reply.rates.tolist())}"
                )
            if progress is not None:
                progress(state.epoch - newest.epoch, total)
        return Recovered(state, layout, newest.settings, replayed=state.epoch - newest.epoch)

    def snapshots(self) -> list[Snapshot]:
        """All kept snapshots, oldest first."""
        with self.reading() as connection:
            return rows.all_snapshots(connection)

    def snapshot_at(self, epoch: int) -> Snapshot:
        """The snapshot of an epoch."""
        kept = {snapshot.epoch: snapshot for snapshot in self.snapshots()}
        if epoch not in kept:
            raise ValueError(f"there is no snapshot of epoch {epoch}; there are those of {', '.join(map(str, kept))}")
        return kept[epoch]

    def check_snapshot(self, epoch: int) -> None:
        """Refuse to go back to a snapshot that is not there or cannot be read, and say which others can."""
        fault = self.fault_of(self.snapshot_at(epoch))
        if fault is None:
            return
        others = [str(other.epoch) for other in self.snapshots() if other.epoch != epoch and not self.fault_of(other)]
        instead = f"or go back to {' or '.join(others)}, which can be read" if others else "no other one can be read"
        raise StoreDamaged(
            f"the snapshot of epoch {epoch} cannot be read, so nothing was deleted: {fault}",
            f"restore it from a backup, {instead}",
        )

    def fault_of(self, snapshot: Snapshot) -> str | None:
        """Why a snapshot cannot be read; None: it can."""
        try:
            load_state(snapshot, self.layout(), self.blobs)
        except StoreDamaged as error:
            return error.what
        return None

    def layout(self) -> Layout:
        """The layout of the model the store was begun with."""
        with self.reading() as connection:
            text = schema.get(connection, "layout")
        if text is None:
            raise StoreError("the store is empty; start a server with `cdfl serve` first")
        return rows.layout_from_json(text)

    def newest_epoch(self) -> int:
        """The epoch of the last entry, also where another process owns the store."""
        with self.reading() as connection:
            return rows.last_epoch(connection) or 0

    def entries(self, after: int, limit: int = 1000) -> list[Entry]:
        """Entries with epochs above `after`, oldest first, as far back as the journal goes."""
        with self.reading() as connection:
            return rows.entries(connection, schema.journal.c.epoch > after, limit=limit)

    def all_entries(self, after: int) -> Iterator[Entry]:
        """The same, however many there are."""
        while piece := self.entries(after, PIECE):
            yield from piece
            after = piece[-1].epoch

    def find(self, client_id: str, key: str) -> Entry | None:
        """The entry of an idempotency key, if it was used. Its reply may be gone (`entry.reply` None): 410."""
        with self.reading() as connection:
            return rows.find(connection, client_id, key)

    def read_reply(self, entry: Entry) -> bytes | None:
        """The reply to an entry, byte for byte; None: no longer kept."""
        return None if entry.reply is None else self.blobs.read(entry.reply)

    def read_upload(self, entry: Entry, layout: Layout) -> Tensor | None:
        """The local model of an entry, checked against its digest; None: not kept."""
        if entry.upload is None:
            return None
        return decode_model(read_exactly(self.blobs, entry.upload, entry.digest), layout, ours=True)

    def read_base(self, entry: Entry, layout: Layout) -> Tensor | None:
        """The model that the one of an entry was trained from, checked; None: not kept."""
        return None if entry.base is None else self.read_model(entry.base, layout)

    def read_model(self, name: str, layout: Layout) -> Tensor:
        """The model in a blob whose name says what it must hold."""
        return decode_model(read_exactly(self.blobs, name, digest_in(name) or "no name"), layout, ours=True)

    def client(self, client_id: str) -> ClientRecord | None:
        """What is known of a client."""
        with self.reading() as connection:
            return rows.client(connection, client_id)

    def num_clients(self) -> int:
        """How many clients are known."""
        with self.reading() as connection:
            return rows.num_clients(connection)

    def was_given(self, client_id: str, epoch: int) -> bool:
        """Whether this client may name this epoch as its base epoch.

        Epochs older than the journal are refused: nobody could tell whether their upload was taken already.
        """
        if epoch < self.journal_start:
            return False
        with self.reading() as connection:
            return rows.was_given(connection, client_id, epoch)

    def knows(self, client_id: str) -> bool:
        """Whether anything is stored of a client, and be it a token."""
        with self.reading() as connection:
            return rows.knows(connection, client_id)

    def asked_to_forget(self) -> list[str]:
        """Clients that `cdfl forget` wants forgotten while a server runs: the owner looks every second or so."""
        with self.reading() as connection:
            return rows.asked_to_forget(connection)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection to read rows from."""
        self._resolve()
        with self.database.read() as connection:
            yield connection

    def _resolve(self) -> None:
        """An owner may have something to clear up before anything is read."""
