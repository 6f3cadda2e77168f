"""The store: journal, snapshots, clients, sent models and blobs. Entries survive any crash once `commit` returns.

One process owns a store and writes to it, from one thread at a time; reads (`Reader`) may come from any thread. On
PostgreSQL other front ends may share it: they record what clients were sent, and offer uploads to the owner (`Offers`).
Every method may raise StoreUnavailable; then nothing was changed, and the caller may repeat the call later.
"""

import json
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from cdfl.core import Layout, ServerState, Settings
from cdfl.server import queries, tables
from cdfl.server.blobs import OURS, Blobs, Body, digest_in, digest_of, new_name, open_blobs
from cdfl.server.database import Database, UncertainCommit, turn_of
from cdfl.server.database_engine import database_url
from cdfl.server.store_errors import StoreDamaged, StoreError, StoreUnavailable, Withdrawn
from cdfl.server.store_reader import Reader
from cdfl.server.store_records import Claim, Entry, Retention, Snapshot
from cdfl.wire import body_parts

NUM_WRITERS = 4  # threads that write the replies of a group
SPOOL_SECONDS = 3600.0  # a body to which nothing was added for so long belongs to a server that died
SIGN = "store-"  # the blob with this prefix names the store that owns the blobs beside it


class _UncertainGroup(NamedTuple):
    """A group whose COMMIT failed: it may be committed or not."""

    blobs: list[str]  # its own
    superseded: list[queries.SentModel]  # what its clients were sent before


class Store(Reader):
    """Where a server keeps everything."""

    def __init__(self, database: Database, blobs: Blobs, retention: Retention) -> None:
        super().__init__(database, blobs)
        self.retention = retention
        self.epoch: int | None = None  # of the last committed entry; None before `begin`
        self.number = 0  # of the last committed entry
        self._turn = threading.RLock()  # held while `epoch` and the tables can differ
        self._snapshotting = threading.Lock()  # taken before `_turn`, never while it is held
        self._uncertain: _UncertainGroup | None = None
        self._doubtful: list[str] = []  # blobs of writes that may be committed or not; `settle` finds out
        self._writers = ThreadPoolExecutor(NUM_WRITERS, thread_name_prefix="cdfl-replies")
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="cdfl-cleaner")
        self._unknown: set[str] = set()  # blobs to which nothing referred at the last `sweep`
        self._undeleted: list[str] = []  # unreferenced blobs; used by the cleaner only

    @classmethod
    def open(
        cls,
        database: str | Path,
        blobs: str | Path | None = None,
        retention: Retention | None = None,
        *,
        own: bool = True,
        shared: bool = False,
    ) -> "Store":
        """Open a store, or create one.

        `database` is a folder (SQLite inside, blobs beside it), or a URL: sqlite:///FILE or postgresql://...
        `blobs` is a folder or any fsspec URL; a database URL needs it.
        `own=True` is for the one server: StoreBusy if there is another. `own=False` may read, create tokens and ask
        for a client to be forgotten beside a running server. `shared=True` is for one of several servers, if the
        database is PostgreSQL: it becomes the owner by `try_own`.
        """
        if blobs is None and "://" in str(database):
            raise StoreError("a database URL needs a place for the blobs, too (--blobs): a folder, or an fsspec URL")
        kept = open_blobs(Path(database) / "blobs" if blobs is None else blobs)
        connected = Database.open(database_url(database), own=own, shared=shared)
        try:
            store = cls(connected, kept, retention or Retention())
            store._check_blobs()
            if own:
                store._claim_blobs()
                if connected.is_alone:  # otherwise others may be about to refer to what nothing refers to
                    store._sweep_blobs()
                connected.admit_others()
            store.read_on()
        except BaseException:
            connected.close()
            raise
        return store

    def close(self) -> None:
        """Close everything; another server may open the store."""
        self._writers.shutdown()
        self._cleaner.shutdown()
        self.database.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_shared(self) -> bool:
        """Return whether other front ends may use the store, too."""
        return self.database.shared

    @property
    def is_owner(self) -> bool:
        """Return whether this process applies the uploads, as far as it knows."""
        return self.database.is_owner

    def read_on(self) -> None:
        """Read where the journal ends and begins."""
        with self.database.read() as connection:
            self.epoch, self.number = queries.last_epoch(connection), queries.last_number(connection)
            self.journal_start = queries.journal_start(connection)

    def try_own(self) -> bool:
        """Become the owner, if no other front end is."""
        return self.database.try_own()

    def disown(self) -> None:
        """Leave the store to another front end."""
        self.database.disown()

    def follow(self, epoch: int, number: int) -> None:
        """Note the last entry that another front end has committed."""
        self.epoch, self.number = epoch, number

    def settle(self) -> None:
        """Delete blobs of writes that were not committed after all."""
        names, self._doubtful = self._doubtful, []
        if names:
            with self.reading() as connection:
                known = queries.all_blobs(connection)
            self._discard([name for name in names if name not in known])

    def sweep(self) -> None:
        """Delete what front ends that died have left: blobs that nothing refers to, as at the last call.

        Others may be about to refer to new ones, so calls are some minutes apart.
        """
        names = [name for name in self.blobs.names() if OURS.fullmatch(name)]
        known = set(self.all_blobs())
        unknown = {name for name in names if name not in known}
        self._discard(sorted(unknown & self._unknown))
        self._unknown = unknown - self._unknown
        self.blobs.empty_spool(SPOOL_SECONDS)

    def check(self) -> None:
        """Check that everything can be written and is still owned by this process."""
        with self.writing() as connection:
            self.database.check_writable(connection)
            tables.put(connection, "checked", str(time.time()))  # an empty transaction commits on a read-only database
        self.blobs.check()

    # -- the state

    def begin(self, state: ServerState, layout: Layout, settings: Settings) -> None:
        """Take the first snapshot of an empty store, epoch 0."""
        if self.epoch is not None:
            raise ValueError(f"the store holds a server at epoch {self.epoch}; recover it, or use a new store")
        if state.epoch != 0:
            raise ValueError(f"the state is at epoch {state.epoch}; expected 0, where a store begins")
        self._add_snapshot(state, layout, settings)
        self.epoch = 0

    def snapshot(self, state: ServerState, settings: Settings | None = None) -> None:
        """Keep the clusters at `state.epoch`, then `prune`. May run in a thread while commits go on.

        `settings` are those in force from this epoch on; None to keep the present ones. A server that starts with
        other settings than `recover` returned takes a snapshot with the new ones before it accepts an upload.
        """
        with self._snapshotting:
            layout, newest = self.layout(), self.snapshots()[-1]
            settings = settings or newest.settings
            if state.epoch > newest.epoch:
                self._add_snapshot(state, layout, settings)
            elif state.epoch == newest.epoch:
                with self.writing(as_owner=True) as connection:
                    same = Snapshot.of(state, settings, newest.models, newest.created)
                    queries.change_snapshot(connection, same)
        self.prune()

    def put_fingerprints(self, fingerprints: dict[str, str]) -> None:
        """Record what the losses in the store depend on."""
        with self.writing(as_owner=True) as connection:
            tables.put(connection, "fingerprints", json.dumps(fingerprints))

    def put_router(self, body: bytes) -> None:
        """Keep the router."""
        name = new_name("router", digest_of(body))
        with self._kept([name]):
            self.blobs.write(name, body)
            self.blobs.sync_folder()
            with self.writing(as_owner=True) as connection:
                tables.put(connection, "router", name)

    def prune(self) -> None:
        """Delete old snapshots, uploads that recovery does not need, old replies and old entries."""
        with self.writing(as_owner=True) as connection:
            names = queries.expire(connection, self.retention, time.time())
            start = queries.journal_needed(connection, self.retention, self.epoch or 0)
            if start - self.journal_start > self.retention.keep_entries // 10:  # not at every snapshot
                names += queries.shorten_journal(connection, start)
            else:
                start = self.journal_start
        self.journal_start = start
        self._discard(names)

    def count_after(self, epoch: int) -> tuple[int, int]:
        """Return how many uploads of how many clients a rollback to this snapshot deletes."""
        self._check_snapshot(epoch)
        with self.reading() as connection:
            return queries.count_after(connection, epoch)

    def rollback(self, epoch: int) -> None:
        """Go back to a snapshot: delete everything after it. Clients that were sent a later epoch must ask for a model.

        If the snapshot cannot be read, raise StoreDamaged and delete nothing.
        """
        with self._turn:
            self._check_snapshot(epoch)
            try:
                with self.writing(as_owner=True) as connection:
                    names = queries.delete_after(connection, epoch)
                    number, start = queries.last_number(connection), queries.journal_start(connection)
            except UncertainCommit:
                self.close()  # the next process that opens the store finds out
                raise
            self.epoch, self.number, self.journal_start = epoch, number, start
        self._discard(names)

    # -- uploads

    def spool(self) -> Path:
        """Return a path for the body of an upload, from which `keep` can take it. The caller may unlink it."""
        return self.blobs.spool()

    def keep(self, spool: Path, digest: str) -> str:
        """Make a complete upload durable; return its blob. The caller commits the blob with an entry, or drops it."""
        name = new_name("upload", digest)
        self.blobs.move_in(spool, name)
        return name

    def keep_sent(self, sent: str) -> str | None:
        """Copy a model that was sent to a client as the base of its upload; return the blob, None if it is deleted.

        A file gets a second name, which takes no room. The caller commits the blob with an entry, or drops it.
        """
        base = new_name("base", digest_in(sent))
        return base if self.blobs.copy(sent, base) else None

    def keep_base(self, model: Body) -> str:
        """Keep another model as the base of an upload; return the blob."""
        name = new_name("base", digest_of(model))
        self.blobs.write(name, model)
        return name

    def drop(self, *names: str | None) -> None:
        """Delete blobs of an upload that was not committed."""
        self._discard([name for name in names if name is not None])

    def commit(
        self, group: Sequence[tuple[Entry, Body]], claims: Iterable[Claim] = (), offered: Collection[str] = ()
    ) -> list[Entry]:
        """Make a group of entries with their replies durable in one transaction: all or none. Return the entries.

        Epochs follow on `self.epoch`; an entry that moved nothing may have the epoch of the one before. This method
        sets `number` and `reply`. A rejected upload has no reply of its own: its client keeps the model it was sent.
        Uploads and bases of entries that moved nothing are deleted unless `keep_uploads` is set, and so are the models
        that clients with a reply were sent before. If it fails, nothing was changed, and the uploads are dropped;
        not so if it raises Withdrawn because a claim no longer holds. The uploads in `offered` came from other front
        ends: they are no longer offered, or stay so if it fails.
        """
        if not group:
            return []
        entries = self._named(group)
        came = {name for entry, _ in group for name in (entry.upload, entry.base) if name is not None}
        replies = [entry.reply for entry in entries if entry.reply is not None]
        try:
            self._write_replies(entries, [body for _, body in group])
            self.blobs.sync_folder()
            old = self._commit(entries, [*came, *replies], claims, offered)
        except UncertainCommit:
            raise
        except Withdrawn:
            self._discard(replies)
            raise
        except BaseException:
            self._discard([*came.difference(offered), *replies])
            raise
        kept = {name for entry in entries for name in (entry.upload, entry.base)}
        self._discard([*old, *(came - kept)])
        return entries

    # -- clients

    def record_sent(self, client_id: str, epoch: int, model: Body | None = None, claim: Claim | None = None) -> None:
        """Record durably that a client was sent a model of this epoch; `commit` does so for its replies.

        If `model` is passed, it is kept until the client is sent another one. Clients with equal models share a blob.
        Raises Withdrawn if the claim no longer holds.
        """
        digest = None if model is None else digest_of(model)
        with self.writing() as connection:
            _check_claims(connection, [claim] if claim else [])
            shared = None if digest is None else queries.sent_blob(connection, epoch, digest)
            is_complete = model is None or shared is not None
            old = self._add_sent(connection, client_id, epoch, shared) if is_complete else []
        if model is not None and digest is not None and shared is None:
            name = new_name("sent", digest)
            with self._kept([name]):
                self.blobs.write(name, model)
                self.blobs.sync_folder()
                with self.writing() as connection:
                    _check_claims(connection, [claim] if claim else [])
                    old = self._add_sent(connection, client_id, epoch, name)
        self._discard(old)

    def forget(self, client_id: str, state: ServerState | None) -> bool:
        """Delete everything of a client; return whether there was anything.

        `state` is the newest one; None before `begin`. A snapshot of it is taken first if recovery would need the
        client's entries. Call it from the thread that commits.
        """
        record = self.client(client_id)
        newest = self.snapshots()[-1:]
        if newest and record and record.last and record.last.epoch > newest[0].epoch:
            if state is None or state.epoch != self.epoch:
                came = "there is none" if state is None else f"it is at epoch {state.epoch}"
                raise ValueError(f"the state must be the newest, of epoch {self.epoch}; {came}")
            self.snapshot(state)
        with self.writing(as_owner=True) as connection:
            names = queries.blobs_of_client(connection, client_id)
            queries.unshare(connection, client_id)
        self.blobs.delete(names)  # before their names are lost
        self.blobs.sync_folder()
        with self.writing(as_owner=True) as connection:
            found = queries.erase(connection, client_id)
        self.database.clean()
        return found

    def ask_to_forget(self, client_id: str) -> None:
        """Ask the owner to forget a client."""
        with self.writing() as connection:
            queries.ask_to_forget(connection, client_id, time.time())

    @contextmanager
    def writing(self, *, as_owner: bool = False) -> Iterator[sa.Connection]:
        """Run a transaction; with `as_owner`, raise StoreLost if another front end applies the uploads."""
        with turn_of(self._turn):
            self._resolve()
            with self.database.write(as_owner=as_owner) as connection:
                yield connection

    # -- snapshots and sent models

    def _add_snapshot(self, state: ServerState, layout: Layout, settings: Settings) -> None:
        names: list[str] = []
        with self._kept(names):
            for model in state.cluster_models:
                body = body_parts(model, layout)
                names.append(new_name("snapshot", digest_of(body)))
                self.blobs.write(names[-1], body)
            self.blobs.sync_folder()
            with self.writing(as_owner=True) as connection:
                queries.add_snapshot(connection, Snapshot.of(state, settings, names, time.time()))
                queries.put_layout(connection, layout)

    def _check_snapshot(self, epoch: int) -> None:
        """Refuse a snapshot that is missing or cannot be read, and name those that can."""
        fault = self.fault_of(self.snapshot_at(epoch))
        if fault is None:
            return
        others = [str(other.epoch) for other in self.snapshots() if other.epoch != epoch and not self.fault_of(other)]
        instead = f"or go back to {' or '.join(others)}, which can be read" if others else "no other one can be read"
        raise StoreDamaged(
            f"the snapshot of epoch {epoch} cannot be read, so nothing was deleted: {fault}",
            f"restore it from a backup, {instead}",
        )

    def _add_sent(self, connection: sa.Connection, client_id: str, epoch: int, model: str | None) -> list[str]:
        keep = self.retention.keep_sent_epochs
        return queries.add_sent(connection, client_id, epoch, model, keep=keep, now=time.time())

    # -- committing

    def _named(self, group: Sequence[tuple[Entry, Body]]) -> list[Entry]:
        """Name the reply of each client's last entry; clear uploads and bases that recovery does not need."""
        last = {entry.client_id: entry for entry, _ in group}
        digests = self._writers.map(digest_of, [body for _, body in group])
        entries: list[Entry] = []
        for (entry, _), digest in zip(group, digests, strict=True):
            is_needed = entry.outcome == "applied" or self.retention.keep_uploads
            kept = entry if is_needed else replace(entry, upload=None, base=None)
            has_reply = last[entry.client_id] is entry and entry.outcome != "rejected"
            number = self.number + len(entries) + 1
            entries.append(replace(kept, number=number, reply=new_name("reply", digest) if has_reply else None))
        return entries

    def _write_replies(self, entries: list[Entry], bodies: list[Body]) -> None:
        named = [(entry.reply, body) for entry, body in zip(entries, bodies, strict=True) if entry.reply is not None]
        written = [self._writers.submit(self.blobs.write, name, body) for name, body in named]
        wait(written)  # all of them, so that none is written after its group has failed
        for future in written:
            future.result()

    def _commit(
        self, entries: list[Entry], names: list[str], claims: Iterable[Claim], offered: Collection[str]
    ) -> list[str]:
        """Append to the journal; return blobs that are no longer referenced."""
        with turn_of(self._turn):
            self._resolve()
            self._check_order(entries)
            superseded: list[queries.SentModel] = []
            try:
                with self.database.write(as_owner=True) as connection:
                    _check_claims(connection, claims)
                    superseded = queries.add_entries(connection, entries)
                    if offered:
                        queries.delete_offers(connection, offered)
            except UncertainCommit:
                if self.is_shared:  # another front end may have seen it, so it stays if it is there
                    self._doubtful += [*names, *(sent.blob for sent in superseded if not sent.is_shared)]
                    self.disown()
                else:
                    self._uncertain = _UncertainGroup(names, superseded)
                raise
            self.epoch, self.number = entries[-1].epoch, entries[-1].number
            return sorted({sent.blob for sent in superseded if not sent.is_shared})

    def _check_order(self, entries: list[Entry]) -> None:
        if self.epoch is None:
            raise ValueError("nothing was begun; call begin or recover first")
        epochs = [self.epoch, *(entry.epoch for entry in entries)]
        for entry, (before, after) in zip(entries, pairwise(epochs), strict=True):
            may_stay = entry.outcome != "applied"
            if after != before + 1 and not (may_stay and after == before):
                raise ValueError(f"the epochs of the group are {epochs[1:]}; expected them to follow on {self.epoch}")

    def _resolve(self) -> None:
        """Undo a group whose COMMIT failed: its clients got an error."""
        if self._uncertain is None:
            return
        with turn_of(self._turn):
            if self._uncertain is None or self.epoch is None:
                return
            with self.database.write() as connection:
                names = queries.delete_after(connection, self.epoch, self.number)
                queries.restore(connection, self._uncertain.superseded)
            names, self._uncertain = names + self._uncertain.blobs, None
            self._discard(names)

    # -- blobs

    @contextmanager
    def _kept(self, names: list[str]) -> Iterator[None]:
        """Keep new blobs if the block commits a reference to them; otherwise delete them."""
        try:
            yield
        except UncertainCommit:
            self._doubtful += names
            raise
        except BaseException:
            self._discard(names)
            raise

    def _discard(self, names: Iterable[str]) -> None:
        """Delete blobs in the background; retry with the next ones if that fails."""

        def delete() -> None:
            self._undeleted += names
            with suppress(StoreUnavailable):
                self.blobs.delete(self._undeleted)
                self._undeleted.clear()

        with suppress(RuntimeError):  # the store was closed meanwhile
            self._cleaner.submit(delete)

    def _check_blobs(self) -> None:
        """Refuse a place that does not hold the blobs of a store with a journal. Nothing is created."""
        with self.database.read() as connection:
            is_begun, name = queries.last_epoch(connection) is not None, tables.get(connection, "blobs")
        if is_begun and (name is None or self.blobs.read(name) is None):
            raise StoreError(
                f"the blobs of this store are not in {self.blobs.place}; name their place (--blobs), or mount its disk"
            )

    def _claim_blobs(self) -> None:
        """Create the place of the blobs and sign it; refuse the place of another store, whose blobs we would delete."""
        self.blobs.make()
        with self.database.write() as connection:
            name = tables.get(connection, "blobs")
            if name is None:
                name = SIGN + secrets.token_hex(16)
                tables.put(connection, "blobs", name)
        if self.blobs.read(name) is not None:
            return
        if any(other.startswith(SIGN) for other in self.blobs.names()):
            raise StoreError("the place for the blobs holds those of another store; give every store its own place")
        self.blobs.write(name, b"The blobs here belong to the store that knows this name.\n")
        self.blobs.sync_folder()

    def _sweep_blobs(self) -> None:
        """Delete what a crash has left: spooled files and unreferenced blobs."""
        self.blobs.empty_spool()
        with self.database.read() as connection:
            known = queries.all_blobs(connection)
        self.blobs.delete(name for name in self.blobs.names() if OURS.fullmatch(name) and name not in known)


def _check_claims(connection: sa.Connection, claims: Iterable[Claim]) -> None:
    """Raise Withdrawn if some clients may no longer write; inside the transaction in which they do."""
    if claims := list(claims):
        names, overtaken = queries.withdrawn(connection, claims, time.time())
        if names or overtaken:
            raise Withdrawn(names, overtaken)
