"""Verify a store: read the snapshots, replay the journal and compare bit for bit."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from torch import Tensor

from cdfl.core import NotFiniteError, Reply, ServerState, Settings, Upload
from cdfl.server import queries
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreDamaged, StoreError
from cdfl.server.store_records import Entry, Snapshot, tensor
from cdfl.wire import DTYPES, UnfitError, encode_experts, encode_model, expert_type

NUM_TRIES = 5  # a running server may delete what is about to be read


@dataclass
class Verified:
    """What was checked, and what was wrong."""

    first: int  # epoch of the snapshot where the replay began
    last: int  # epoch where it ended
    read: int = 0  # snapshots that could be read, byte for byte
    snapshots: int = 0  # of these, how many were compared with the replay
    entries: int = 0
    replies: int = 0
    findings: list[str] = field(default_factory=list)  # one sentence each; empty if nothing is wrong


class _Overtaken(Exception):  # noqa: N818
    """A running server has deleted what was about to be read."""


def verify(store: Store, progress: Callable[[int, int], None] | None = None, tolerance: float = 0.0) -> Verified:
    """Replay from the oldest snapshot with a complete journal; compare every snapshot, entry and reply on the way.

    Older snapshots are read as well, because `cdfl rollback` offers them. Recorded numbers may
    differ from replayed ones by `tolerance`, absolute or relative: use it if the server ran on other hardware.
    """
    for _ in range(NUM_TRIES):
        try:
            return _Replayer(store, tolerance).run(progress or (lambda done, total: None))
        except _Overtaken:
            pass
    raise StoreError("the server takes snapshots faster than they can be verified; try again, or stop the server")


class _Replayer:
    """Replays the journal once and compares it with what is stored."""

    def __init__(self, store: Store, tolerance: float) -> None:
        self.store = store
        self.tolerance = tolerance
        self.layout = store.layout()
        self.snapshots = {snapshot.epoch: snapshot for snapshot in store.snapshots()}
        self.unread = set(self.snapshots)
        with store.reading() as connection:
            complete, last = queries.complete_since(connection), queries.last_epoch(connection)
        first = min(epoch for epoch in self.snapshots if epoch >= complete)
        self.result = Verified(first=first, last=last or 0)

    def run(self, progress: Callable[[int, int], None]) -> Verified:
        """Go from the first snapshot to the last entry; after a damaged entry, continue at the next snapshot."""
        result = self.result
        self._load_all(
            epoch for epoch in self.snapshots if epoch < result.first
        )  # before the replay, because a running server deletes old snapshots
        state = self._load(self.snapshots[result.first])
        settings, reached = self.snapshots[result.first].settings, result.first
        before = settings  # in force until the last snapshot
        for entry in self._entries():
            if state is not None:
                if entry.epoch == reached and before != settings and self._was_decided_by(before, state, entry):
                    continue  # it moved nothing, just before the snapshot of its epoch was taken with other settings
                state = self._step(state, entry, settings)
            if entry.epoch > reached and (snapshot := self.snapshots.get(entry.epoch)):
                before = settings
                state, settings = self._compare(state, snapshot), snapshot.settings
            reached = entry.epoch
            progress(entry.epoch - result.first, result.last - result.first)
        self._load_all(sorted(self.unread))  # of epochs whose entries are missing
        return result

    def _entries(self) -> Iterator[Entry]:
        for entry in self.store.all_entries(self.result.first):
            if entry.epoch > self.result.last:  # a running server adds entries meanwhile
                return
            yield entry

    def _was_decided_by(self, settings: Settings, state: ServerState, entry: Entry) -> bool:
        """Return whether these settings lead to the recorded decision; findings are kept only if so."""
        entries, findings = self.result.entries, list(self.result.findings)
        after = self._step(state, entry, settings)
        if after is not None and self.result.findings == findings:
            return True
        self.result.entries, self.result.findings = entries, findings
        return False

    def _step(self, state: ServerState, entry: Entry, settings: Settings) -> ServerState | None:
        """Return the state after an entry; None if it cannot be replayed."""
        self.result.entries += 1
        try:
            anew = entry.upload is not None  # otherwise only the recorded decision can be replayed
            after, reply = self.store.replay(state, entry, settings, self.layout, anew=anew)
            if self._same_decision(entry, after, reply) and self.tolerance == 0:
                return after
            return self.store.replay(state, entry, settings, self.layout)[0]
        except (StoreDamaged, NotFiniteError) as error:
            if entry.outcome == "rejected" and not self._is_there(entry):  # a running server has deleted it
                self.result.entries -= 1
                return state
            self._unreadable(f"entry {entry.epoch}: {error}")
            return None

    def _is_there(self, entry: Entry) -> bool:
        return any(found.number == entry.number for found in self.store.entries(entry.number - 1, limit=1))

    def _same_decision(self, entry: Entry, after: ServerState, reply: Reply) -> bool:
        """Compare the recorded decision with the replayed one; return whether they are the same."""
        own_mixture = tensor(entry.own_mixture) if entry.own_mixture else None
        upload = Upload(reply.personal_model, entry.base_epoch, entry.client_id, mixture=own_mixture)
        given = {"key": "", "digest": "", "received": 0.0, "evaluated": entry.evaluated, "report": entry.report}
        again = Entry.of(after, upload, entry.client_before, reply, **given)
        was, now = entry.decision | {"outcome": entry.outcome}, again.decision | {"outcome": reply.outcome}
        if entry.upload is None:  # the measures and the verdict are not computed again
            was, now = (
                {name: each[name] for name in ("mixture", "rates", "staleness", "outcome")} for each in (was, now)
            )
        differs = [name for name in now if not self._same(was[name], now[name])]
        for name in differs:
            self.result.findings.append(f"entry {entry.epoch}: {name} was {was[name]}, a replay gives {now[name]}")
        return not differs and self._same_reply(entry, after, reply)

    def _same(self, was: object, now: object) -> bool:
        if isinstance(was, dict) and isinstance(now, dict):
            return was.keys() == now.keys() and all(self._same(was[name], now[name]) for name in now)
        if self.tolerance == 0 or not isinstance(was, tuple | float) or not isinstance(now, tuple | float):
            return was == now
        if isinstance(was, tuple) and isinstance(now, tuple):
            return len(was) == len(now) and all(self._same(*pair) for pair in zip(was, now, strict=True))
        return (
            isinstance(was, float)
            and isinstance(now, float)
            and math.isclose(was, now, rel_tol=self.tolerance, abs_tol=self.tolerance)
        )

    def _same_reply(self, entry: Entry, after: ServerState, reply: Reply) -> bool:
        stored = self.store.read_reply(entry) if self.tolerance == 0 else None
        if stored is None:
            return True
        self.result.replies += 1
        rounded = expert_type(stored, self.layout, after.num_clusters)
        if rounded and b"".join(encode_experts(after.cluster_models, self.layout, rounded)) == stored:
            return True
        for dtype in DTYPES:
            with suppress(UnfitError):  # a value that does not fit float16
                if encode_model(reply.personal_model, self.layout, dtype) == stored:
                    return True
        self.result.findings.append(f"entry {entry.epoch}: the stored reply {entry.reply} is not what a replay gives")
        return False

    def _compare(self, state: ServerState | None, snapshot: Snapshot) -> ServerState | None:
        """Compare a replayed state with a snapshot; continue with the snapshot, as recovery does."""
        stored = self._load(snapshot)
        if state is None or stored is None:
            return stored
        self.result.snapshots += 1
        parts = ("cluster_models", "cluster_losses", "cluster_epochs", "estimator_memory", "defence_memory")
        for name in parts:
            if not _same_bits(getattr(state, name), getattr(stored, name)):
                self.result.findings.append(f"snapshot {snapshot.epoch}: {name} is not what a replay gives")
        return stored

    def _load_all(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            self._load(self.snapshots[epoch])

    def _load(self, snapshot: Snapshot) -> ServerState | None:
        self.unread.discard(snapshot.epoch)
        try:
            state = self.store.load_state(snapshot, self.layout)
        except StoreDamaged as error:
            is_newest = snapshot.epoch == max(self.snapshots)  # the server does not need the others
            words = (
                error
                if is_newest
                else f"{error.what}; restore it from a backup; without it, `cdfl rollback` cannot go back to this epoch"
            )
            self._unreadable(f"snapshot {snapshot.epoch}: {words}")
            return None
        self.result.read += 1
        return state

    def _unreadable(self, finding: str) -> None:
        if [snapshot.epoch for snapshot in self.store.snapshots()] != list(self.snapshots):
            raise _Overtaken
        self.result.findings.append(finding)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits: signed zeros differ, NaN equals itself."""
    return one.shape == other.shape and one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
