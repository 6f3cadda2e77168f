"""The records that a store keeps, as plain values; no database is needed to import them."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from cdfl.core import (
    NEWCOMER,
    UNMEASURED,
    ClientMemory,
    Layout,
    Measures,
    Outcome,
    Reply,
    ServerState,
    Settings,
    Upload,
    Verdict,
)
from cdfl.core.state import ACCEPTED

Numbers = tuple[float | None, ...]  # None replaces NaN and infinity, which JSON cannot hold


@dataclass(frozen=True)
class Entry:
    """One upload in the journal.

    The fields of `IDENTITY` are columns. All others are the decision and share one JSON column, so a new one is
    written here and in `Entry.of` only. Numbers are kept exactly.
    """

    epoch: int  # t, after this upload; several entries have the same if some moved nothing
    client_id: str  # "" if the client was forgotten; then nothing in the entry is about it
    key: str  # the idempotency key
    digest: str  # sha256 of the uploaded safetensors, in hex
    outcome: Outcome
    received: float  # unix time
    number: int = 0  # counts entries; `Store.commit` sets it
    upload: str | None = None  # blob of the local model; None if not kept
    base: str | None = None  # blob of the model it was trained from; None if not kept or not needed
    reply: str | None = None  # blob of the reply; None if not kept

    base_epoch: int = 0
    staleness: int = 0
    mixture: tuple[float, ...] = ()  # of the reply
    rates: tuple[float, ...] = ()
    cluster_losses: Numbers = ()  # F(w_k; D_k) after this upload; None if not evaluated
    losses: Numbers = ()  # F(v; D_k); () if not measured
    loss_gaps: Numbers = ()
    distances: Numbers = ()
    evaluated: Numbers = ()  # losses on the proxy sets, in the order in which the decision asked for them
    own_mixture: tuple[float, ...] = ()  # that came with the upload; () if the server estimated it
    report: tuple[float, ...] = ()  # what the client says of its last reply: its own loss before and after it
    verdict: Verdict = ACCEPTED  # of the defence
    last_mixture: tuple[float, ...] | None = None  # the client's memory before this upload; None for a newcomer
    last_defence: tuple[float, ...] = ()

    @classmethod
    def of(cls, state: ServerState, upload: Upload, client: ClientMemory, reply: Reply, /, **identity: Any) -> "Entry":
        """Record the reply to an upload; `state` is the one after it."""
        return cls(
            epoch=state.epoch,
            client_id=str(upload.client_id),
            outcome=reply.outcome,
            base_epoch=upload.base_epoch,
            staleness=reply.staleness,
            mixture=tuple(reply.mixture.tolist()),
            rates=tuple(reply.rates.tolist()),
            cluster_losses=numbers(state.cluster_losses),
            losses=numbers(reply.measures.losses),
            loss_gaps=numbers(reply.measures.loss_gaps),
            distances=numbers(reply.measures.distances),
            own_mixture=() if upload.mixture is None else tuple(upload.mixture.tolist()),
            verdict=reply.verdict,
            last_mixture=None if client.mixture is None else tuple(client.mixture.tolist()),
            last_defence=client.defence,
            **identity,
        )

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Entry":
        """Read a row of the journal."""
        decision = {name: _tuples(value) for name, value in row.pop("decision").items()}
        verdict = Verdict(**{name: _tuples(value) for name, value in decision.pop("verdict").items()})
        return cls(**row | {"client_id": row["client_id"] or ""}, **decision, verdict=verdict)

    def to_row(self) -> dict[str, Any]:
        """Return the row of the journal."""
        return {name: getattr(self, name) for name in IDENTITY} | {"decision": self.decision}

    @property
    def decision(self) -> dict[str, Any]:
        """What was decided about the upload, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in IDENTITY}
        return values | {"verdict": self.verdict._asdict()}

    def forgotten(self) -> "Entry":
        """Return the entry without anything about its client."""
        return Entry(
            epoch=self.epoch,
            client_id="",
            key="",
            digest="",
            outcome=self.outcome,
            received=self.received,
            number=self.number,
            cluster_losses=self.cluster_losses,
        )

    @property
    def reply_epoch(self) -> int:
        """The epoch of the model that the client was answered with."""
        return self.base_epoch if self.outcome == "rejected" else self.epoch

    @property
    def measures(self) -> Measures:
        """The measures of the upload."""
        if not self.losses:
            return UNMEASURED
        return Measures(tensor(self.losses), tensor(self.loss_gaps), tensor(self.distances))

    @property
    def client_before(self) -> ClientMemory:
        """What was remembered of the client before this upload."""
        return ClientMemory(None if self.last_mixture is None else tensor(self.last_mixture), self.last_defence)

    @property
    def client_after(self) -> ClientMemory:
        """What is remembered of the client after this upload."""
        return ClientMemory(tensor(self.mixture), self.verdict.client)


IDENTITY = ("number", "epoch", "client_id", "key", "digest", "outcome", "received", "upload", "base", "reply")


@dataclass(frozen=True)
class Claim:
    """Why a client may write: checked again when it does, since it may have been forgotten or its token revoked."""

    client_id: str
    token: str | None = None  # hash of its token; None on an open server
    since: float | None = None  # `ClientRecord.since`; None if the client is new
    uploads: int | None = None  # `ClientRecord.uploads`; None if they do not matter


@dataclass(frozen=True)
class ClientRecord:
    """What the store knows of a client, and of the epoch and the key that the caller asked about."""

    client_id: str
    since: float  # unix time of the first contact
    uploads: int
    last: Entry | None = None  # its newest entry; None if it has not uploaded yet
    repeated: Entry | None = None  # its entry with the key; the reply may be deleted already
    was_sent: bool = False  # whether it was sent a model of the epoch
    sent: str | None = None  # blob of that model; None if not kept
    sent_mixture: tuple[float, ...] | None = None  # the mixture in that reply; None if uniform

    @property
    def memory(self) -> ClientMemory:
        """What the core remembers of it."""
        return self.last.client_after if self.last else NEWCOMER

    @property
    def memory_then(self) -> ClientMemory:
        """The same with the mixture of the reply at that epoch: a client may return to an older reply."""
        return self.memory._replace(mixture=None if self.sent_mixture is None else tensor(self.sent_mixture))


@dataclass(frozen=True)
class Snapshot:
    """The server at one epoch, and the settings in force from then on."""

    epoch: int
    created: float  # unix time
    models: tuple[str, ...]  # blobs, one a cluster
    state: dict[str, Any]  # the small tensors of `ServerState`, as lists
    settings: Settings

    @classmethod
    def of(cls, state: ServerState, settings: Settings, models: Sequence[str], created: float) -> "Snapshot":
        """Describe a state whose cluster models are in blobs."""
        small = {
            "cluster_losses": numbers(state.cluster_losses),
            "cluster_epochs": state.cluster_epochs.tolist(),
            "estimator_memory": state.estimator_memory.tolist(),
            "defence_memory": state.defence_memory.tolist(),
        }
        return cls(state.epoch, created, tuple(models), small, settings)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Snapshot":
        """Read a row."""
        settings = Settings.from_dict(row.pop("settings"))
        return cls(**row | {"models": tuple(row["models"])}, settings=settings)

    def to_row(self) -> dict[str, Any]:
        """Return the row."""
        return asdict(replace(self, settings=DEFAULTS)) | {"settings": self.settings.to_dict()}

    @property
    def mean_loss(self) -> float:
        """Return the mean loss of the clusters; infinite if one is unknown."""
        losses = tensor(self.state["cluster_losses"])
        return float(losses.mean()) if bool(losses.isfinite().all()) else math.inf

    def restore(self, cluster_models: Tensor, layout: Layout) -> ServerState:
        """Return the state; `cluster_models` (K, P) are those of the blobs."""
        return ServerState(
            cluster_models=cluster_models,
            cluster_losses=tensor(self.state["cluster_losses"]),
            cluster_epochs=torch.tensor(self.state["cluster_epochs"], dtype=torch.int64),
            epoch=self.epoch,
            num_parameters=layout.num_parameters,
            estimator_memory=torch.tensor(self.state["estimator_memory"], dtype=torch.float64),
            defence_memory=torch.tensor(self.state["defence_memory"], dtype=torch.float64),
        )


DEFAULTS = Settings()


@dataclass(frozen=True)
class Recovered:
    """A server as it was when it stopped: snapshot plus journal."""

    state: ServerState
    layout: Layout  # of the stored model
    settings: Settings  # those in force
    replayed: int  # entries after the snapshot
    number: int = 0  # of the last entry that was replayed, or of the last one before the snapshot


@dataclass(frozen=True)
class TokenRecord:
    """A token, without its secret."""

    token_id: str  # the first digits of its hash, enough to identify it
    client_id: str
    created: float  # unix time
    revoked: float | None
    expires: float | None  # unix time; None for a token that does not expire


@dataclass(frozen=True)
class Retention:
    """How long things are kept. The defaults keep what recovery needs, and snapshots of the last week."""

    keep_snapshots: int = 2  # the newest ones
    keep_days: float = 7.0  # older ones, ever fewer of them, and the best one of all
    keep_uploads: bool = False  # keep them as long as the newest snapshots, so that `cdfl verify` reaches back to those
    keep_replies: float = 7 * 24 * 3600.0  # seconds; of each client only the last model is kept
    keep_sent_epochs: int = 16  # epochs of models that a client was sent without uploading
    keep_entries: int = 100_000  # journal entries; the last entry of every client stays

    def snapshots_to_keep(self, snapshots: Sequence[Snapshot], now: float) -> list[int]:
        """Return the epochs of the snapshots to keep, newest first; `snapshots` are sorted by epoch.

        Of older ones, one of every span of time that is twice as long as the one before: 10 to 20 minutes ago, and
        so on. And the one with the lowest losses.
        """
        newest = [snapshot.epoch for snapshot in snapshots[-max(1, self.keep_snapshots) :]]
        spans: dict[int, int] = {}
        for snapshot in snapshots:
            age = now - snapshot.created
            if FIRST_SPAN <= age <= self.keep_days * 24 * 3600:
                spans.setdefault(int(math.log2(age / FIRST_SPAN)), snapshot.epoch)  # the oldest of its span
        best = min(snapshots, key=lambda snapshot: snapshot.mean_loss, default=None)
        kept = {*newest, *spans.values(), *([best.epoch] if best and self.keep_days else [])}
        return sorted(kept, reverse=True)


FIRST_SPAN = 600.0  # seconds


def numbers(values: Tensor) -> Numbers:
    """Return a vector as JSON values: None stands for NaN and infinity."""
    return tuple(value if math.isfinite(value) else None for value in values.double().tolist())


def tensor(values: Sequence[float | None]) -> Tensor:
    """Return JSON values as a vector: NaN stands for None."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
