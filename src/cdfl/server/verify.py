"""Is what is stored what it should be? Snapshots are read, the journal is run again and compared, bit for bit."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cdfl.core import NotFiniteError, Reply, ServerState, Settings
from cdfl.server import rows
from cdfl.server.journal import Entry, Snapshot, StoreDamaged, StoreError
from cdfl.server.replay import replay
from cdfl.server.snapshots import load_state
from cdfl.server.store import Store
from cdfl.server.uploads import distances_of, outcome_of
from cdfl.wire import DTYPES, UnfitError, encode_model

TRIES = 5  # beside a running server, which may delete what is about to be read


@dataclass
class Verified:
    """What was looked at, and what was wrong with it."""

    first: int  # epoch of the snapshot the replay began with
    last: int  # epoch it came to
    read: int = 0  # snapshots of which every byte is what was written
    snapshots: int = 0  # those of them that were compared with the replay
    entries: int = 0
    replies: int = 0
    findings: list[str] = field(default_factory=list)  # one sentence each; empty: all of that is as it should be


class _Overtaken(Exception):  # noqa: N818
    """A running server has deleted what was to be read next, as it should."""


def verify(store: Store, progress: Callable[[int, int], None] | None = None, tolerance: float = 0.0) -> Verified:
    """Replay from the oldest snapshot with a complete journal; compare every snapshot, entry and reply on the way.

    Snapshots that the replay does not come by are read as well: `cdfl rollback` offers them.

    `tolerance` is for a store whose server ran on other hardware: by so much, and by that part of themselves, may
    mixtures, rates, harms and distances differ.
    """
    for _ in range(TRIES):
        try:
            return _Walk(store, tolerance).run(progress or (lambda done, total: None))
        except _Overtaken:
            pass
    raise StoreError("the server takes snapshots faster than this can look at them; try again, or stop it meanwhile")


class _Walk:
    """One pass over the journal."""

    def __init__(self, store: Store, tolerance: float) -> None:
        self.store = store
        self.tolerance = tolerance
        self.layout = store.layout()
        self.snapshots = {snapshot.epoch: snapshot for snapshot in store.snapshots()}
        self.unread = set(self.snapshots)
        with store.reading() as connection:
            complete, last = rows.complete_since(connection), rows.last_epoch(connection)
        first = min(epoch for epoch in self.snapshots if epoch >= complete)
        self.result = Verified(first=first, last=last or 0)

    def run(self, progress: Callable[[int, int], None]) -> Verified:
        """Go from the first snapshot to the last entry. After something unreadable, go on at the next snapshot."""
        result = self.result
        self._load_all(epoch for epoch in self.snapshots if epoch < result.first)  # now: a server deletes them first
        state = self._load(self.snapshots[result.first])
        settings = self.snapshots[result.first].settings
        for entry in self._entries():
            if state is not None:
                state = self._step(state, entry, settings)
            if snapshot := self.snapshots.get(entry.epoch):
                state, settings = self._compare(state, snapshot), snapshot.settings
            progress(entry.epoch - result.first, result.last - result.first)
        self._load_all(sorted(self.unread))  # of epochs whose entries are missing
        return result

    def _entries(self) -> Iterator[Entry]:
        for entry in self.store.all_entries(self.result.first):
            if entry.epoch > self.result.last:  # a running server goes on meanwhile
                return
            yield entry

    def _step(self, state: ServerState, entry: Entry, settings: Settings) -> ServerState | None:
        """The state after an entry; None if it cannot be known."""
        self.result.entries += 1
        try:
            model = self.store.read_upload(entry, self.layout)
            base_model = self.store.read_base(entry, self.layout)
            known, mixture = self._last_mixture(entry)
            anew = known and model is not None  # else only what was recorded can be replayed
            after, reply = replay(state, entry, model, settings, mixture, base_model=base_model, anew=anew)
            same = self._same_decision(entry, reply, anew=anew) if known else True
            if same and self.tolerance == 0:
                return after
            return replay(state, entry, model, settings, base_model=base_model)[0]
        except (StoreDamaged, NotFiniteError) as error:
            self._unreadable(f"entry {entry.epoch}: {error}")
            return None

    def _last_mixture(self, entry: Entry) -> tuple[bool, tuple[float, ...] | None]:
        """Whether the mixture this client had before is known, and which. An entry that was applied does without."""
        if entry.client_id == "" or entry.outcome == "applied":
            return entry.client_id != "", None
        with self.store.reading() as connection:
            before = rows.last_entry(connection, entry.client_id, before=entry.epoch)
        if before is not None:
            return True, before.mixture
        return self.store.journal_start == 0, None

    def _same_decision(self, entry: Entry, reply: Reply, *, anew: bool) -> bool:
        """Compare what was decided with what is decided now; False: something differs."""
        pairs: list[tuple[str, object, object]] = [("mixture", entry.mixture, tuple(reply.mixture.tolist()))]
        if anew:
            pairs += [
                ("outcome", entry.outcome, outcome_of(reply)),
                ("rates", entry.rates, tuple(reply.rates.tolist())),
                ("staleness", entry.staleness, reply.staleness),
                ("harm", entry.harm, reply.harm),
            ]
            if entry.distances is not None:  # an older cdfl did not write them down
                pairs.append(("distances", entry.distances, distances_of(reply)))
        differs = [(name, was, now) for name, was, now in pairs if not self._same(was, now)]
        for name, was, now in differs:
            self.result.findings.append(f"entry {entry.epoch}: {name} was {was}, a replay gives {now}")
        return not differs and self._same_reply(entry, reply)

    def _same(self, was: object, now: object) -> bool:
        if self.tolerance == 0 or not isinstance(was, tuple | float) or not isinstance(now, tuple | float):
            return was == now
        then, today = torch.tensor(was, dtype=torch.float64), torch.tensor(now, dtype=torch.float64)
        return then.shape == today.shape and torch.allclose(then, today, rtol=self.tolerance, atol=self.tolerance)

    def _same_reply(self, entry: Entry, reply: Reply) -> bool:
        stored = self.store.read_reply(entry) if self.tolerance == 0 else None
        if stored is None:
            return True
        self.result.replies += 1
        for dtype in DTYPES:
            with suppress(UnfitError):  # a value beyond float16
                if encode_model(reply.personal_model, self.layout, dtype) == stored:
                    return True
        self.result.findings.append(f"entry {entry.epoch}: the stored reply {entry.reply} is not what a replay gives")
        return False

    def _compare(self, state: ServerState | None, snapshot: Snapshot) -> ServerState | None:
        """Compare a replayed state with a snapshot; go on with the snapshot, which is what recovery would do."""
        stored = self._load(snapshot)
        if state is None or stored is None:
            return stored
        self.result.snapshots += 1
        parts = ("cluster_models", "cluster_losses", "cluster_epochs", "recent_harms", "usual_measures")
        for name in parts:
            if not _same_bits(getattr(state, name), getattr(stored, name)):
                self.result.findings.append(f"snapshot {snapshot.epoch}: {name} are not what a replay gives")
        return stored

    def _load_all(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            self._load(self.snapshots[epoch])

    def _load(self, snapshot: Snapshot) -> ServerState | None:
        self.unread.discard(snapshot.epoch)
        try:
            state = load_state(snapshot, self.layout, self.store.blobs)
        except StoreDamaged as error:
            is_newest = snapshot.epoch == max(self.snapshots)  # else the server runs without it
            words = error if is_newest else f"{error.what}; restore it from a backup, or there is no way back to it"
            self._unreadable(f"snapshot {snapshot.epoch}: {words}")
            return None
        self.result.read += 1
        return state

    def _unreadable(self, finding: str) -> None:
        if [snapshot.epoch for snapshot in self.store.snapshots()] != list(self.snapshots):
            raise _Overtaken
        self.result.findings.append(finding)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal to the last bit: signed zeros differ, NaN equals itself."""
    return one.shape == other.shape and one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
