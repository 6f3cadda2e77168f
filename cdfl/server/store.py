"""The store: journal, snapshots, clients, grants and tokens. What `commit` has returned from survives anything.

One process owns a store and writes to it, from one thread at a time; reads may come from any thread.
Every method may raise StoreUnavailable; then nothing was changed, and the same call works when the store is back.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from cdfl.core import Hyperparams, Layout, ServerState
from cdfl.server.journal import ClientRecord, Entry, Recovered, Retention, Snapshot


class Store:
    """Where a server keeps everything."""

    epoch: int | None  # of the last committed entry; None: nothing was begun yet

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

        `database` is a folder (SQLite inside, blobs beside it), or a URL: sqlite:///file or postgresql://...
        `blobs` is a folder or any fsspec URL; a URL of a database needs it.
        `own=True` is for the one server: StoreBusy if there is another. `own=False` may read, create tokens and ask
        for a client to be forgotten beside a running server.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything; another server may open the store."""
        raise NotImplementedError

    def check(self) -> None:
        """Ask database and blobs whether they are there and writable (for /readyz)."""
        raise NotImplementedError

    # -- the state

    def begin(self, state: ServerState, layout: Layout, hyperparams: Hyperparams) -> None:
        """The first snapshot of an empty store, epoch 0."""
        raise NotImplementedError

    def recover(self, progress: Callable[[int, int], None] | None = None) -> Recovered | None:
        """The newest snapshot with the journal after it replayed; None: nothing was begun yet.

        `progress` is told how many of how many entries are done.
        """
        raise NotImplementedError

    def snapshot(self, state: ServerState, hyperparams: Hyperparams | None = None) -> None:
        """Keep the clusters as they are at `state.epoch`, then `prune`. May run in a thread while commits go on.

        `hyperparams` are those in force from this epoch on; None: as before. A server that starts with others than
        `recover` gave takes a snapshot with the new ones before it accepts an upload.
        """
        raise NotImplementedError

    def prune(self) -> None:
        """Delete what is kept no longer: old snapshots, uploads recovery does not need, old replies and entries."""
        raise NotImplementedError

    def snapshots(self) -> list[Snapshot]:
        """All kept snapshots, oldest first."""
        raise NotImplementedError

    # -- clients

    def client(self, client_id: str) -> ClientRecord | None:
        """What is known of a client."""
        raise NotImplementedError

    def num_clients(self) -> int:
        """How many clients are known."""
        raise NotImplementedError

    def grant(self, client_id: str, epoch: int) -> None:
        """Remember that this client was given a model of this epoch; durable. (`commit` does so for its replies.)"""
        raise NotImplementedError

    def was_given(self, client_id: str, epoch: int) -> bool:
        """Whether this client may name this epoch as its base epoch."""
        raise NotImplementedError

    # -- uploads

    def spool(self) -> Path:
        """A path for the body of an upload, on a disk `keep` can take it from. The caller writes and may unlink it."""
        raise NotImplementedError

    def keep(self, spool: Path) -> str:
        """Make a complete upload durable and name it; to be called in the upload's own thread, before `commit`.

        The file is renamed, not copied, where blobs are a folder. It must hold plain safetensors, as `digest` saw it.
        An upload that is never committed is dropped with `drop`, or swept at the next start.
        """
        raise NotImplementedError

    def drop(self, name: str) -> None:
        """Delete the blob of an upload that was not committed."""
        raise NotImplementedError

    def commit(self, group: Sequence[tuple[Entry, bytes]]) -> None:
        """Make a group of entries durable, in order, all or none, with their replies: one transaction.

        `entry.upload` is what `keep` gave (None, or not kept, for an outcome other than applied), `entry.reply` is
        named here. The reply is plain safetensors. The epochs follow on `self.epoch`. Each client is now given the
        epoch of its reply; its earlier reply is deleted.
        """
        raise NotImplementedError

    def find(self, client_id: str, key: str) -> Entry | None:
        """The entry of an idempotency key, if it was used. Its reply may be gone (`entry.reply` None): 410."""
        raise NotImplementedError

    def read_reply(self, entry: Entry) -> bytes | None:
        """The reply to an entry, byte for byte; None: no longer kept."""
        raise NotImplementedError

    def entries(self, after: int, limit: int = 1000) -> list[Entry]:
        """Entries with epochs above `after`, oldest first, as far back as the journal goes."""
        raise NotImplementedError

    # -- tokens; only their hashes are stored

    def token_client(self, token: str) -> str | None:
        """The client a token belongs to; None: unknown or revoked."""
        raise NotImplementedError

    # -- forgetting

    def forget(self, client_id: str, state: ServerState) -> None:
        """Remove all that is stored of a client. Takes a snapshot of `state` first, where recovery needs its uploads."""
        raise NotImplementedError

    def asked_to_forget(self) -> list[str]:
        """Clients that `cdfl forget` wants forgotten while a server runs: the owner looks every second or so."""
        raise NotImplementedError
