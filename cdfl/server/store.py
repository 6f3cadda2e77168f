"""The store: journal, snapshots, clients, grants and tokens. What `commit` has returned from survives anything.

One process owns a store and writes to it, from one thread at a time; reads may come from any thread.
Every method may raise StoreUnavailable; then nothing was changed, and the same call works when the store is back.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa
from torch import Tensor

from cdfl.core import Hyperparams, Layout, ServerState
from cdfl.server import rows, schema
from cdfl.server.blobs import Blobs, Body, new_name, open_blobs
from cdfl.server.database import Database, InDoubt
from cdfl.server.journal import (
    ClientRecord,
    Entry,
    Recovered,
    Retention,
    Snapshot,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from cdfl.server.replay import replay
from cdfl.server.snapshots import from_losses, load_state, read_exactly, save_models
from cdfl.server.tokens import Tokens
from cdfl.wire import decode_model

SYNCING = 4  # replies of a group that are written at the same time
OURS = re.compile(r"(upload|reply|snapshot)-[0-9a-f]{32}")  # blobs that may be swept: nobody else's
PIECE = 256  # entries read at a time


class Store:
    """Where a server keeps everything."""

    def __init__(self, database: Database, blobs: Blobs, retention: Retention) -> None:
        self.database = database
        self.blobs = blobs
        self.retention = retention
        self.tokens = Tokens(database)
        self.epoch: int | None = None  # of the last committed entry; None: nothing was begun yet
        self.journal_start = 0  # entries before this one may be gone
        self._turn = threading.RLock()  # held while `epoch` and what is written can differ
        self._doubtful: list[str] | None = None  # blobs of a group of which nobody knows whether it was committed
        self._writers = ThreadPoolExecutor(SYNCING, thread_name_prefix="cdfl-replies")
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="cdfl-cleaner")

    @classmethod
    def open(
        cls,
        database: str | Path,
        blobs: str | Path | None = None,
        retention: Retention | None = None,
        *,
        own: bool = True,
    ) -> "Store":
        """Open a store, or make one.

        `database` is a folder (SQLite inside, blobs beside it), or a URL: sqlite:///FILE or postgresql://...
        `blobs` is a folder or any fsspec URL; a URL of a database needs it.
        `own=True` is for the one server: StoreBusy if there is another. `own=False` may read, create tokens and ask
        for a client to be forgotten beside a running server.
        """
        database, blobs = _places(database, blobs)
        if not own and Database.version(database) < schema.VERSION:
            Database(
                database, own=True
            ).close()  # nobody may use older tables; whoever owns them brings them up to date
        connected = Database(database, own=own)
        try:
            store = cls(connected, open_blobs(blobs), retention or Retention())
            store._start()
        except BaseException:
            connected.close()
            raise
        return store

    def close(self) -> None:
        """Let go of everything; another server may open the store."""
        self._writers.shutdown()
        self._cleaner.shutdown()
        self.database.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Make sure that everything is there, writable and still ours (for /readyz)."""
        with self._write():
            pass
        self.blobs.check()

    # -- the state

    def begin(self, state: ServerState, layout: Layout, hyperparams: Hyperparams) -> None:
        """The first snapshot of an empty store, epoch 0."""
        if self.epoch is not None:
            raise ValueError(f"the store holds a server at epoch {self.epoch} already; recover it, or take a new store")
        if state.epoch != 0:
            raise ValueError(f"the state is at epoch {state.epoch}; a store begins with epoch 0")
        with self._new_snapshot(state, layout, hyperparams) as (connection, snapshot):
            rows.add_snapshot(connection, snapshot)
            schema.put(connection, "layout", rows.layout_to_json(layout))
        self.epoch = 0

    def recover(self, progress: Callable[[int, int], None] | None = None) -> Recovered | None:
        """The newest snapshot with the journal after it replayed; None: nothing was begun yet.

        `progress` is told how many of how many entries are done.
        """
        kept = self.snapshots()
        if not kept:
            return None
        layout, newest = self.layout(), kept[-1]
        state = load_state(newest, layout, self.blobs)
        total = (self.epoch or 0) - newest.epoch
        for entry in self.all_entries(newest.epoch):
            state, reply = replay(state, entry, self.read_upload(entry, layout), newest.hyperparams)
            if entry.outcome == "applied" and tuple(reply.rates.tolist()) != entry.rates:
                raise StoreDamaged(
                    f"entry {entry.epoch} moved the clusters by {entry.rates}, but the stored hyperparameters give "
                    f"{tuple(reply.rates.tolist())}; restore a backup, or go back with `cdfl rollback`"
                )
            if progress is not None:
                progress(state.epoch - newest.epoch, total)
        return Recovered(state, layout, newest.hyperparams, replayed=state.epoch - newest.epoch)

    def snapshot(self, state: ServerState, hyperparams: Hyperparams | None = None) -> None:
        """Keep the clusters as they are at `state.epoch`, then `prune`. May run in a thread while commits go on.

        `hyperparams` are those in force from this epoch on; None: as before. A server that starts with others than
        `recover` gave takes a snapshot with the new ones before it accepts an upload.
        """
        newest = self.snapshots()[-1]
        hyperparams = hyperparams or newest.hyperparams
        if state.epoch == newest.epoch:
            with self._write() as connection:
                rows.change_hyperparams(connection, state.epoch, hyperparams)
        else:
            with self._new_snapshot(state, self.layout(), hyperparams) as (connection, snapshot):
                rows.add_snapshot(connection, snapshot)
        self.prune()

    def prune(self) -> None:
        """Delete what is kept no longer: old snapshots, uploads recovery does not need, old replies and entries."""
        with self._write() as connection:
            names = rows.expire(connection, self.retention, time.time())
            start = rows.journal_start(connection, self.retention, self.epoch or 0)
            if start - self.journal_start > self.retention.keep_entries // 10:  # not at every snapshot
                rows.shorten_journal(connection, start)
            else:
                start = self.journal_start
        self.journal_start = start
        self._discard(names)

    def snapshots(self) -> list[Snapshot]:
        """All kept snapshots, oldest first."""
        with self._read() as connection:
            return rows.all_snapshots(connection)

    def layout(self) -> Layout:
        """The layout of the model the store was begun with."""
        with self._read() as connection:
            text = schema.get(connection, "layout")
        if text is None:
            raise StoreError("the store is empty; start a server with `cdfl serve` first")
        return rows.layout_from_json(text)

    def rollback(self, epoch: int) -> None:
        """Go back to a snapshot: everything after it is deleted. Clients given a later epoch must ask for a model."""
        with self._turn:
            if epoch not in [snapshot.epoch for snapshot in self.snapshots()]:
                raise ValueError(f"there is no snapshot of epoch {epoch}")
            with self._write() as connection:
                names = rows.cut(connection, epoch)
            self.epoch = epoch
        self._discard(names)

    # -- clients

    def client(self, client_id: str) -> ClientRecord | None:
        """What is known of a client."""
        with self._read() as connection:
            return rows.client(connection, client_id)

    def num_clients(self) -> int:
        """How many clients are known."""
        with self._read() as connection:
            return rows.num_clients(connection)

    def grant(self, client_id: str, epoch: int) -> None:
        """Remember that this client was given a model of this epoch; durable. `commit` does so for its replies."""
        if not self.was_given(client_id, epoch):
            with self._write() as connection:
                keep = self.retention.keep_grants
                rows.add_grant(connection, self.database, client_id, epoch, keep=keep, now=time.time())

    def was_given(self, client_id: str, epoch: int) -> bool:
        """Whether this client may name this epoch as its base epoch.

        Epochs older than the journal are refused: nobody could tell whether their upload was taken already.
        """
        if epoch < self.journal_start:
            return False
        with self._read() as connection:
            return rows.was_given(connection, client_id, epoch)

    # -- uploads

    def spool(self) -> Path:
        """A path for the body of an upload, on a disk `keep` can take it from. The caller writes and may unlink it."""
        return self.blobs.spool()

    def keep(self, spool: Path) -> str:
        """Make a complete upload durable and name it; to be called in the upload's own thread, before `commit`.

        The file is renamed, not copied, where blobs are a folder. It must hold plain safetensors, as `digest` saw it.
        An upload that is never committed is dropped with `drop`, or swept at the next start.
        """
        name = new_name("upload")
        self.blobs.adopt(spool, name)
        return name

    def drop(self, name: str) -> None:
        """Delete the blob of an upload that was not committed."""
        self._discard([name])

    def commit(self, group: Sequence[tuple[Entry, Body]]) -> None:
        """Make a group of entries durable, in order, all or none, with their replies: one transaction.

        `entry.upload` is what `keep` gave; where it moved nothing it is not kept (but see `Retention`). `entry.reply`
        is named here; a reply is plain safetensors. The epochs follow on `self.epoch`. Each client is now given the
        epoch of its reply, and its earlier reply is deleted. If this fails, nothing has happened, and the uploads are
        dropped.
        """
        if not group:
            return
        with self._turn:
            self._resolve()
            self._check_order([entry for entry, _ in group])
            entries = self._named([entry for entry, _ in group])
            uploads = {entry.upload for entry, _ in group if entry.upload is not None}
            names = [*uploads, *(entry.reply for entry in entries if entry.reply is not None)]
            try:
                self._write_replies(entries, [body for _, body in group])
                self.blobs.settle()
                with self.database.write() as connection:
                    old_replies = rows.add_entries(connection, self.database, entries)
            except InDoubt:
                self._doubtful = names
                raise
            except BaseException:
                self._discard(names)
                raise
            self.epoch = entries[-1].epoch
        self._discard([*old_replies, *(uploads - {entry.upload for entry in entries})])

    def find(self, client_id: str, key: str) -> Entry | None:
        """The entry of an idempotency key, if it was used. Its reply may be gone (`entry.reply` None): 410."""
        with self._read() as connection:
            return rows.find(connection, client_id, key)

    def read_reply(self, entry: Entry) -> bytes | None:
        """The reply to an entry, byte for byte; None: no longer kept."""
        return None if entry.reply is None else self.blobs.read(entry.reply)

    def read_upload(self, entry: Entry, layout: Layout) -> Tensor | None:
        """The local model of an entry, checked against its digest; None: not kept."""
        if entry.upload is None:
            return None
        return decode_model(read_exactly(self.blobs, entry.upload, entry.digest), layout)

    def entries(self, after: int, limit: int = 1000) -> list[Entry]:
        """Entries with epochs above `after`, oldest first, as far back as the journal goes."""
        with self._read() as connection:
            return rows.entries(connection, schema.journal.c.epoch > after, limit=limit)

    def newest_epoch(self) -> int:
        """The epoch of the last entry, also where another process owns the store."""
        with self._read() as connection:
            return rows.last_epoch(connection) or 0

    def complete_since(self) -> int:
        """The epoch after which every entry is there, with its upload where it was applied."""
        with self._read() as connection:
            return rows.complete_since(connection)

    def entry_before(self, entry: Entry) -> Entry | None:
        """The entry before this one of the same client, if the journal goes back that far."""
        with self._read() as connection:
            return rows.last_entry(connection, entry.client_id, before=entry.epoch)

    def all_entries(self, after: int) -> Iterator[Entry]:
        """The same, however many there are."""
        while piece := self.entries(after, PIECE):
            yield from piece
            after = piece[-1].epoch

    # -- forgetting

    def forget(self, client_id: str, state: ServerState) -> bool:
        """Remove all that is stored of a client; was there anything? `state` is the server's, as it is now.

        Recovery must not need the client's entries any more, so a snapshot of `state` is taken first where it would.
        """
        with self._turn:
            record = self.client(client_id)
            newest = self.snapshots()[-1:]
            if newest and record and record.last and record.last.epoch > newest[0].epoch:
                self._check_newest(state)
                self.snapshot(state)
            with self._read() as connection:
                names = rows.blobs_of(connection, schema.journal.c.client_id == client_id)
            self.blobs.delete(names)  # before their names are lost
            self.blobs.settle()
            with self._write() as connection:
                found = rows.erase(connection, client_id)
            self.database.clean()
            return found

    def ask_to_forget(self, client_id: str) -> None:
        """Leave word for the owner."""
        with self._write() as connection:
            rows.ask_to_forget(connection, self.database, client_id, time.time())

    def asked_to_forget(self) -> list[str]:
        """Clients that `cdfl forget` wants forgotten while a server runs: the owner looks every second or so."""
        with self._read() as connection:
            return rows.asked_to_forget(connection)

    # -- inside

    def _start(self) -> None:
        with self._read() as connection:
            self.epoch = rows.last_epoch(connection)
            self.journal_start = int(schema.get(connection, "journal_start") or 0)
        if self.database.own:
            self._claim_blobs()
            self._sweep()

    def _claim_blobs(self) -> None:
        """Database and blobs must belong together: blobs of another store would be swept, and ours not be found."""
        with self._write() as connection:
            name = schema.get(connection, "blobs")
            if name is None:
                name = new_name("store")
                schema.put(connection, "blobs", name)
        if self.blobs.read(name) is not None:
            return
        if self.epoch is not None:
            raise StoreError("the blobs of this store are not there; name the place they are in, or mount its disk")
        if any(other.startswith("store-") for other in self.blobs.names()):
            raise StoreError(
                "the place for the blobs holds those of another store; give every store a place of its own"
            )
        self.blobs.write(name, b"The blobs here belong to the store that knows this name.\n")
        self.blobs.settle()

    def _sweep(self) -> None:
        """Delete what a crash has left: blobs that were written, or no longer needed, when it happened."""
        self.blobs.empty_spool()
        with self._read() as connection:
            known = rows.all_blobs(connection)
        self.blobs.delete(name for name in self.blobs.names() if OURS.fullmatch(name) and name not in known)

    @contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        self._resolve()
        with self.database.read() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        with self._turn:
            self._resolve()
            with self.database.write() as connection:
                yield connection

    def _resolve(self) -> None:
        """Take back a group that was perhaps committed: its clients were told that it was not."""
        if self._doubtful is None:
            return
        with self._turn:
            if self._doubtful is None or self.epoch is None:
                return
            with self.database.write() as connection:
                names = rows.cut(connection, self.epoch)
            names, self._doubtful = names + self._doubtful, None
            self._discard(names)

    def _check_newest(self, state: ServerState) -> None:
        if state.epoch != self.epoch:
            raise ValueError(f"the state is at epoch {state.epoch}, the store at {self.epoch}; expected the newest one")

    def _check_order(self, entries: list[Entry]) -> None:
        if self.epoch is None:
            raise ValueError("nothing was begun; call begin or recover first")
        epochs = [entry.epoch for entry in entries]
        if epochs != list(range(self.epoch + 1, self.epoch + 1 + len(entries))):
            raise ValueError(f"the epochs of the group are {epochs}; expected them to follow on {self.epoch}")

    @contextmanager
    def _new_snapshot(
        self, state: ServerState, layout: Layout, hyperparams: Hyperparams
    ) -> Iterator[tuple[sa.Connection, Snapshot]]:
        """Write the models, then open the transaction that is to make them a snapshot."""
        models, digests = save_models(state, layout, self.blobs)
        try:
            self.blobs.settle()
            with self._write() as connection:
                yield (
                    connection,
                    Snapshot(
                        epoch=state.epoch,
                        created=time.time(),
                        cluster_losses=from_losses(state.cluster_losses),
                        cluster_epochs=tuple(state.cluster_epochs.tolist()),
                        recent_harms=tuple(state.recent_harms.tolist()),
                        hyperparams=hyperparams,
                        models=models,
                        digests=digests,
                    ),
                )
        except InDoubt:
            raise  # perhaps they are needed; if not, the next start sweeps them
        except BaseException:
            self._discard(models)
            raise

    def _named(self, entries: list[Entry]) -> list[Entry]:
        """Entries as they are written: the last one of a client has a reply, those recovery needs have an upload."""
        last = {entry.client_id: entry.epoch for entry in entries}
        return [
            replace(
                entry,
                upload=entry.upload if entry.outcome == "applied" or self.retention.keep_uploads else None,
                reply=new_name("reply") if last[entry.client_id] == entry.epoch else None,
            )
            for entry in entries
        ]

    def _write_replies(self, entries: list[Entry], bodies: list[Body]) -> None:
        named = [(entry.reply, body) for entry, body in zip(entries, bodies, strict=True) if entry.reply is not None]
        if len(named) == 1:
            self.blobs.write(*named[0])
        else:
            list(self._writers.map(lambda pair: self.blobs.write(*pair), named))

    def _discard(self, names: Iterable[str]) -> None:
        """Delete blobs nobody speaks of, while nobody waits. What cannot be deleted is swept at the next start."""

        def delete() -> None:
            with suppress(StoreUnavailable):
                self.blobs.delete(names)

        with suppress(RuntimeError):  # the store was closed meanwhile
            self._cleaner.submit(delete)


def _places(database: str | Path, blobs: str | Path | None) -> tuple[str, str | Path]:
    """Where database and blobs are, from what a user writes."""
    if "://" not in str(database):
        folder = Path(database).absolute()
        return f"sqlite:///{folder / 'store.db'}", blobs or folder / "blobs"
    if blobs is None:
        raise StoreError("a URL of a database needs a place for the blobs as well: a folder, or an fsspec URL")
    return str(database), blobs
