"""The store: journal, snapshots, clients, grants and tokens. What `commit` has returned from survives anything.

One process owns a store and writes to it, from one thread at a time; reads (`Reader`) may come from any thread.
Every method may raise StoreUnavailable; then nothing was changed, and the same call works when the store is back.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from cdfl.core import Hyperparams, Layout, ServerState
from cdfl.server import rows, schema
from cdfl.server.blobs import Blobs, Body, new_name
from cdfl.server.database import Database, InDoubt
from cdfl.server.journal import Entry, Retention, StoreUnavailable
from cdfl.server.places import blobs_place, check_blobs, claim, database_url, open_blobs, sweep
from cdfl.server.reader import Reader
from cdfl.server.snapshots import save_snapshot
from cdfl.server.tokens import Tokens

SYNCING = 4  # replies of a group that are written at the same time


class Store(Reader):
    """Where a server keeps everything."""

    def __init__(self, database: Database, blobs: Blobs, retention: Retention) -> None:
        super().__init__(database, blobs)
        self.retention = retention
        self.tokens = Tokens(database)
        self.epoch: int | None = None  # of the last committed entry; None: nothing was begun yet
        self._turn = threading.RLock()  # held while `epoch` and what is written can differ
        self._snapshotting = threading.Lock()  # taken before `_turn`, never while it is held
        self._doubtful: list[str] | None = None  # blobs of a group of which nobody knows whether it was committed
        self._writers = ThreadPoolExecutor(SYNCING, thread_name_prefix="cdfl-replies")
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="cdfl-cleaner")
        self._undeleted: list[str] = []  # blobs that nobody speaks of any more; only the cleaner knows them

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
        kept = blobs_place(database, blobs)
        connected = Database.open(database_url(database), own=own)
        try:
            store = cls(connected, open_blobs(kept), retention or Retention())
            if own:
                claim(store.database, store.blobs)
                sweep(store.database, store.blobs)
            else:
                check_blobs(store.database, store.blobs)
            with connected.read() as connection:
                store.epoch = rows.last_epoch(connection)
                store.journal_start = rows.journal_start(connection)
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
        with self.writing() as connection:
            schema.put(connection, "checked", str(time.time()))  # a database that is read-only begins and commits, too
        self.blobs.check()

    # -- the state

    def begin(self, state: ServerState, layout: Layout, hyperparams: Hyperparams) -> None:
        """The first snapshot of an empty store, epoch 0."""
        if self.epoch is not None:
            raise ValueError(f"the store holds a server at epoch {self.epoch} already; recover it, or take a new store")
        if state.epoch != 0:
            raise ValueError(f"the state is at epoch {state.epoch}; a store begins with epoch 0")
        self._keep_snapshot(state, layout, hyperparams)
        self.epoch = 0

    def snapshot(self, state: ServerState, hyperparams: Hyperparams | None = None) -> None:
        """Keep the clusters as they are at `state.epoch`, then `prune`. May run in a thread while commits go on.

        `hyperparams` are those in force from this epoch on; None: as before. A server that starts with others than
        `recover` gave takes a snapshot with the new ones before it accepts an upload.
        """
        with self._snapshotting:
            layout, newest = self.layout(), self.snapshots()[-1]
            hyperparams = hyperparams or newest.hyperparams
            if state.epoch > newest.epoch:
                self._keep_snapshot(state, layout, hyperparams)
            elif state.epoch == newest.epoch:
                with self.writing() as connection:
                    rows.change_hyperparams(connection, state.epoch, hyperparams)
        self.prune()

    def prune(self) -> None:
        """Delete what is kept no longer: old snapshots, uploads recovery does not need, old replies and entries."""
        with self.writing() as connection:
            names = rows.expire(connection, self.retention, time.time())
            start = rows.journal_needed(connection, self.retention, self.epoch or 0)
            if start - self.journal_start > self.retention.keep_entries // 10:  # not at every snapshot
                rows.shorten_journal(connection, start)
            else:
                start = self.journal_start
        self.journal_start = start
        self._discard(names)

    def cut_off(self, epoch: int) -> tuple[int, int]:
        """How many uploads of how many clients a rollback to this snapshot deletes."""
        self.snapshot_at(epoch)
        with self.reading() as connection:
            return rows.count_after(connection, epoch)

    def rollback(self, epoch: int) -> None:
        """Go back to a snapshot: everything after it is deleted. Clients given a later epoch must ask for a model."""
        with self._turn:
            self.snapshot_at(epoch)
            try:
                with self.writing() as connection:
                    names = rows.cut(connection, epoch)
            except InDoubt:
                self.close()  # whoever opens it next finds out
                raise
            self.epoch = epoch
        self._discard(names)

    # -- clients

    def grant(self, client_id: str, epoch: int) -> None:
        """Remember that this client was given a model of this epoch; durable. `commit` does so for its replies."""
        if not self.was_given(client_id, epoch):
            with self.writing() as connection:
                keep = self.retention.keep_grants
                rows.add_grant(connection, self.database, client_id, epoch, keep=keep, now=time.time())

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
        entries = self._named([entry for entry, _ in group])
        uploads = {entry.upload for entry, _ in group if entry.upload is not None}
        names = [*uploads, *(entry.reply for entry in entries if entry.reply is not None)]
        try:
            self._write_replies(entries, [body for _, body in group])
            self.blobs.settle()
            old_replies = self._commit(entries, names)
        except InDoubt:
            raise
        except BaseException:
            self._discard(names)
            raise
        self._discard([*old_replies, *(uploads - {entry.upload for entry in entries})])

    # -- forgetting

    def forget(self, client_id: str, state: ServerState | None) -> bool:
        """Remove all that is stored of a client; was there anything? `state` is the server's now; None: nothing begun.

        Recovery must not need the client's entries any more, so a snapshot of `state` is taken first where it would.
        To be called where `commit` is called.
        """
        record = self.client(client_id)
        newest = self.snapshots()[-1:]
        if newest and record and record.last and record.last.epoch > newest[0].epoch:
            self.snapshot(self._newest(state))
        with self.reading() as connection:
            names = rows.blobs_of(connection, schema.journal.c.client_id == client_id)
        self.blobs.delete(names)  # before their names are lost
        self.blobs.settle()
        with self.writing() as connection:
            found = rows.erase(connection, client_id)
        self.database.clean()
        return found

    def ask_to_forget(self, client_id: str) -> None:
        """Leave word for the owner."""
        with self.writing() as connection:
            rows.ask_to_forget(connection, self.database, client_id, time.time())

    # -- inside

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction."""
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

    def _newest(self, state: ServerState | None) -> ServerState:
        if state is None or state.epoch != self.epoch:
            came = "there is none" if state is None else f"it is at epoch {state.epoch}"
            raise ValueError(f"the state must be the newest, of epoch {self.epoch}; {came}")
        return state

    def _check_order(self, entries: list[Entry]) -> None:
        if self.epoch is None:
            raise ValueError("nothing was begun; call begin or recover first")
        epochs = [entry.epoch for entry in entries]
        if epochs != list(range(self.epoch + 1, self.epoch + 1 + len(entries))):
            raise ValueError(f"the epochs of the group are {epochs}; expected them to follow on {self.epoch}")

    def _keep_snapshot(self, state: ServerState, layout: Layout, hyperparams: Hyperparams) -> None:
        snapshot = save_snapshot(state, layout, hyperparams, self.blobs)
        try:
            self.blobs.settle()
            with self.writing() as connection:
                rows.add_snapshot(connection, snapshot)
                schema.put(connection, "layout", rows.layout_to_json(layout))
        except InDoubt:
            raise  # perhaps the models are needed; if not, the next start sweeps them
        except BaseException:
            self._discard(snapshot.models)
            raise

    def _commit(self, entries: list[Entry], names: list[str]) -> list[str]:
        """Append to the journal; returns the replies that have become old."""
        with self._turn:
            self._resolve()
            self._check_order(entries)
            try:
                with self.database.write() as connection:
                    old_replies = rows.add_entries(connection, self.database, entries)
            except InDoubt:
                self._doubtful = names
                raise
            self.epoch = entries[-1].epoch
            return old_replies

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
        written = [self._writers.submit(self.blobs.write, name, body) for name, body in named]
        wait(written)  # all of them, so that none comes after its group has failed
        for future in written:
            future.result()

    def _discard(self, names: Iterable[str]) -> None:
        """Delete blobs nobody speaks of, while nobody waits. What cannot be deleted now goes with the next ones."""

        def delete() -> None:
            self._undeleted += names
            with suppress(StoreUnavailable):
                self.blobs.delete(self._undeleted)
                self._undeleted.clear()

        with suppress(RuntimeError):  # the store was closed meanwhile
            self._cleaner.submit(delete)
