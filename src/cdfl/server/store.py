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
from typing import NamedTuple

import sqlalchemy as sa

from cdfl.core import Layout, ServerState, Settings
from cdfl.server import rows, schema
from cdfl.server.blobs import Blobs, Body, digest_in, digest_of, new_name
from cdfl.server.database import Database, InDoubt
from cdfl.server.journal import Entry, Retention, StoreUnavailable
from cdfl.server.places import blobs_place, check_blobs, claim, database_url, open_blobs, sweep
from cdfl.server.reader import Reader
from cdfl.server.snapshots import save_snapshot
from cdfl.server.tokens import Tokens

SYNCING = 4  # replies of a group that are written at the same time


class _Doubtful(NamedTuple):
    """A group of which nobody knows whether it was committed."""

    blobs: list[str]  # its own
    superseded: list[rows.Sent]  # what its clients were sent before


class Store(Reader):
    """Where a server keeps everything."""

    def __init__(self, database: Database, blobs: Blobs, retention: Retention) -> None:
        super().__init__(database, blobs)
        self.retention = retention
        self.tokens = Tokens(database)
        self.epoch: int | None = None  # of the last committed entry; None: nothing was begun yet
        self._turn = threading.RLock()  # held while `epoch` and what is written can differ
        self._snapshotting = threading.Lock()  # taken before `_turn`, never while it is held
        self._doubtful: _Doubtful | None = None
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
            self.database.check_writable(connection)
            schema.put(connection, "checked", str(time.time()))  # a database that is read-only begins and commits, too
        self.blobs.check()

    # -- the state

    def begin(self, state: ServerState, layout: Layout, settings: Settings) -> None:
        """The first snapshot of an empty store, epoch 0."""
        if self.epoch is not None:
            raise ValueError(f"the store holds a server at epoch {self.epoch} already; recover it, or take a new store")
        if state.epoch != 0:
            raise ValueError(f"the state is at epoch {state.epoch}; a store begins with epoch 0")
        self._keep_snapshot(state, layout, settings)
        self.epoch = 0

    def snapshot(self, state: ServerState, settings: Settings | None = None) -> None:
        """Keep the clusters as they are at `state.epoch`, then `prune`. May run in a thread while commits go on.

        `settings` are those in force from this epoch on; None: as before. A server that starts with others than
        `recover` gave takes a snapshot with the new ones before it accepts an upload.
        """
        with self._snapshotting:
            layout, newest = self.layout(), self.snapshots()[-1]
            settings = settings or newest.settings
            if state.epoch > newest.epoch:
                self._keep_snapshot(state, layout, settings)
            elif state.epoch == newest.epoch:
                with self.writing() as connection:
                    rows.change_settings(connection, state.epoch, settings)
        self.prune()

    def prune(self) -> None:
        """Delete what is kept no longer: old snapshots, uploads recovery does not need, old replies and entries."""
        with self.writing() as connection:
            names = rows.expire(connection, self.retention, time.time())
            start = rows.journal_needed(connection, self.retention, self.epoch or 0)
            if start - self.journal_start > self.retention.keep_entries // 10:  # not at every snapshot
                names += rows.shorten_journal(connection, start)
            else:
                start = self.journal_start
        self.journal_start = start
        self._discard(names)

    def cut_off(self, epoch: int) -> tuple[int, int]:
        """How many uploads of how many clients a rollback to this snapshot deletes; refused as `rollback` is."""
        self.check_snapshot(epoch)
        with self.reading() as connection:
            return rows.count_after(connection, epoch)

    def rollback(self, epoch: int) -> None:
        """Go back to a snapshot: everything after it is deleted. Clients given a later epoch must ask for a model.

        StoreDamaged, and nothing is deleted, where the snapshot cannot be read: what comes after may be all there is.
        """
        with self._turn:
            self.check_snapshot(epoch)
            try:
                with self.writing() as connection:
                    names = rows.cut(connection, epoch)
            except InDoubt:
                self.close()  # whoever opens it next finds out
                raise
            self.epoch = epoch
        self._discard(names)

    # -- clients

    def grant(self, client_id: str, epoch: int, model: Body | None = None) -> None:
        """Remember that this client was given a model of this epoch; durable. `commit` does so for its replies.

        The model itself is kept where it is passed: for `keep_sent`, until the client is sent another one.
        """
        if model is None:
            if not self.was_given(client_id, epoch):
                with self.writing() as connection:
                    self._add_grant(connection, client_id, epoch)
            return
        with self.reading() as connection:
            if rows.sent(connection, client_id, epoch) is not None:
                return
        name = new_name("given", digest_of(model))
        if self._is_shared(client_id, epoch, name):
            return
        try:
            self.blobs.write(name, model)
            self.blobs.settle()
            with self.writing() as connection:
                old = self._add_grant(connection, client_id, epoch, name)
        except InDoubt:
            raise  # perhaps it is needed; if not, the next start sweeps it
        except BaseException:
            self._discard([name])
            raise
        self._discard(old)

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

    def keep_sent(self, client_id: str, epoch: int) -> str | None:
        """Keep the model that this client was sent at this epoch as the base of its upload, and name it; None: gone.

        It takes no room where blobs are files: they get a second name. It is committed with the upload, or dropped.
        """
        with self.reading() as connection:
            name = rows.sent(connection, client_id, epoch)
        digest = None if name is None else digest_in(name)
        if name is None or digest is None:  # an older cdfl did not tell what the blob should hold
            return None
        base = new_name("base", digest)
        return base if self.blobs.copy(name, base) else None

    def keep_base(self, model: Body) -> str:
        """Keep another model as the base of an upload, and name it."""
        name = new_name("base", digest_of(model))
        self.blobs.write(name, model)
        return name

    def drop(self, *names: str | None) -> None:
        """Delete blobs of an upload that was not committed."""
        self._discard([name for name in names if name is not None])

    def commit(self, group: Sequence[tuple[Entry, Body]]) -> None:
        """Make a group of entries durable, in order, all or none, with their replies: one transaction.

        `entry.upload` is what `keep` gave, `entry.base` what `keep_sent` or `keep_base` did; where an upload moved
        nothing they are not kept (but see `Retention`). `entry.reply` is named here; a reply is plain safetensors. The
        epochs follow on `self.epoch`. Each client is now given the epoch of its reply, and what it was sent earlier is
        deleted. If this fails, nothing has happened, and the uploads are dropped.
        """
        if not group:
            return
        entries = self._named(group)
        came = {name for entry, _ in group for name in (entry.upload, entry.base) if name is not None}
        names = [*came, *(entry.reply for entry in entries if entry.reply is not None)]
        try:
            self._write_replies(entries, [body for _, body in group])
            self.blobs.settle()
            old = self._commit(entries, names)
        except InDoubt:
            raise
        except BaseException:
            self._discard(names)
            raise
        kept = {name for entry in entries for name in (entry.upload, entry.base)}
        self._discard([*old, *(came - kept)])

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
        with self._turn:  # nobody may begin to share what is about to be deleted
            with self.reading() as connection:
                names = rows.blobs_of_client(connection, client_id)
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
                rows.restore(connection, self._doubtful.superseded)
            names, self._doubtful = names + self._doubtful.blobs, None
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

    def _keep_snapshot(self, state: ServerState, layout: Layout, settings: Settings) -> None:
        snapshot = save_snapshot(state, layout, settings, self.blobs)
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

    def _is_shared(self, client_id: str, epoch: int, name: str) -> bool:
        """Whether this client was sent this very model already, or somebody else was and its blob will do for both."""
        with self.writing() as connection:
            if rows.sent(connection, client_id, epoch) is not None:
                return True
            shared = rows.given_model(connection, epoch, digest_in(name) or "")
            if shared is None:
                return False
            old = self._add_grant(connection, client_id, epoch, shared)
        self._discard(old)
        return True

    def _add_grant(self, connection: sa.Connection, client_id: str, epoch: int, model: str | None = None) -> list[str]:
        keep, now = self.retention.keep_grants, time.time()
        return rows.add_grant(connection, self.database, client_id, epoch, keep=keep, now=now, model=model)

    def _commit(self, entries: list[Entry], names: list[str]) -> list[str]:
        """Append to the journal; returns the blobs that have become old."""
        with self._turn:
            self._resolve()
            self._check_order(entries)
            superseded: list[rows.Sent] = []
            try:
                with self.database.write() as connection:
                    superseded = rows.add_entries(connection, self.database, entries)
                    old = rows.free(connection, [sent.blob for sent in superseded])
            except InDoubt:
                self._doubtful = _Doubtful(names, superseded)
                raise
            self.epoch = entries[-1].epoch
            return old

    def _named(self, group: Sequence[tuple[Entry, Body]]) -> list[Entry]:
        """Entries as they are written: the last of a client has a reply, those recovery needs have upload and base."""
        last = {entry.client_id: entry.epoch for entry, _ in group}
        digests = self._writers.map(digest_of, [body for _, body in group])
        entries = []
        for (entry, _), digest in zip(group, digests, strict=True):
            is_needed = entry.outcome == "applied" or self.retention.keep_uploads
            kept = entry if is_needed else replace(entry, upload=None, base=None)
            is_last = last[entry.client_id] == entry.epoch
            entries.append(replace(kept, reply=new_name("reply", digest) if is_last else None))
        return entries

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
