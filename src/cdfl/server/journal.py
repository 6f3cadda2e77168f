"""What the store remembers: one entry an upload, one record a client. Plain values, no database.

Errors:
  StoreError
  ├── StoreUnavailable   for now: database or disk away, full or read-only; nothing was changed, try again later
  ├── StoreBusy          another server owns this store
  ├── StoreLost          this server owned it once, another one does now: it must stop
  ├── StoreVersion       written by a newer cdfl
  └── StoreDamaged       what is stored is not what was written
"""

from dataclasses import dataclass

from cdfl.core import Layout, ServerState, Settings
from cdfl.core.accept import past_harm_after
from cdfl.wire import Outcome


class StoreError(Exception):
    """The store cannot do what was asked for; the message says why and what to do."""


class StoreUnavailable(StoreError):  # noqa: N818 - named for what it says to the caller
    """Database or disk are away, full or read-only for now. Nothing was changed; it works again when they are back."""


class StoreBusy(StoreError):  # noqa: N818
    """Another process owns the store."""


class StoreLost(StoreError):  # noqa: N818
    """Another server has taken the store over while this one could not reach it. This one must stop."""


class StoreVersion(StoreError):  # noqa: N818
    """The store was written by a newer cdfl than this one."""


class StoreDamaged(StoreError):  # noqa: N818
    """A stored value is not what was written."""

    def __init__(self, what: str, remedy: str = "restore a backup, or go back with `cdfl rollback`") -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what


@dataclass(frozen=True)
class Entry:
    """One upload, as the journal keeps it. Numbers are kept exactly."""

    epoch: int  # t, after this upload
    client_id: str  # "": the client was forgotten, and with it its key, digest, measures, mixture, rates and blobs
    base_epoch: int
    key: str  # the idempotency key
    digest: str  # sha256 of the uploaded safetensors, in hex
    outcome: Outcome
    losses: tuple[float, ...] | None  # F(v; D_k) as the estimator got them; None: not looked at
    cluster_losses: tuple[float | None, ...]  # F(w_k; D_k) after this entry; None: not evaluated
    mixture: tuple[float, ...]  # of the reply
    rates: tuple[float, ...]
    staleness: int
    received: float  # unix time
    harm: float | None = None  # as `Reply.harm`: what the acceptance test saw; None: not looked at
    usual_harm: float | None = None  # as `Reply.usual_harm`: what it compared with; None: with nothing
    past_harm: float = 1.0  # as `Upload.past_harm`: what it remembered of the client before this upload
    distances: tuple[float, ...] | None = None  # ||v - w_k|| as measured; None: not measured, or beyond all numbers
    upload: str | None = None  # blob of the local model, as `Store.keep` named it; None: no longer kept
    reply: str | None = None  # blob of the reply; None: no longer kept
    base: str | None = None  # blob of the model it was trained from; None: no longer kept, or not needed


@dataclass(frozen=True)
class ClientRecord:
    """What the store knows of a client: that it was given a model, and its last upload."""

    client_id: str
    since: float  # unix time of the first contact
    uploads: int
    last: Entry | None  # the newest entry: mixture, key, digest, reply, epoch; None: it has not uploaded yet

    @property
    def mixture(self) -> tuple[float, ...] | None:
        """The mixture of the last reply; None for a newcomer."""
        return self.last.mixture if self.last else None

    @property
    def past_harm(self) -> float:
        """What the acceptance test remembers of it."""
        return past_harm_after(self.last.past_harm, self.last.harm, self.last.usual_harm) if self.last else 1.0


@dataclass(frozen=True)
class Recovered:
    """A server as it was when it stopped: snapshot plus journal."""

    state: ServerState
    layout: Layout  # of the model the store was begun with
    settings: Settings  # those in force
    replayed: int  # entries after the snapshot


@dataclass(frozen=True)
class Snapshot:
    """Where a snapshot stands: the clusters at one epoch, and the settings in force from then on."""

    epoch: int
    created: float  # unix time
    cluster_losses: tuple[float | None, ...]
    cluster_epochs: tuple[int, ...]
    recent_harms: tuple[float, ...]
    usual_measures: tuple[float, ...]  # (3, K), row by row; (): nothing is usual yet
    settings: Settings
    models: tuple[str, ...]  # blobs, one a cluster
    digests: tuple[str, ...]  # their sha256, in hex


@dataclass(frozen=True)
class TokenRecord:
    """A token, without the token."""

    token_id: str  # the beginning of its hash: enough to name it
    client_id: str
    created: float  # unix time
    revoked: float | None


@dataclass(frozen=True)
class Retention:
    """How long what is kept. The defaults keep no more than recovery needs."""

    keep_snapshots: int = 2
    keep_uploads: bool = False  # True: as long as the oldest kept snapshot, so that `cdfl verify` reaches back to it
    keep_replies: float = 7 * 24 * 3600.0  # seconds; the last model a client was sent at most, older ones go at once
    keep_grants: int = 16  # epochs given to a client that asked without uploading
    keep_entries: int = 100_000  # journal entries; the last entry of every client stays
