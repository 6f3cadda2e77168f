"""Work beside the uploads: snapshots, deleting old data, forgetting clients, and noticing outages of the store."""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from cdfl.core import ServerState
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreDamaged, StoreError, StoreLost, StoreUnavailable

logger = logging.getLogger("cdfl.server")

SNAPSHOT_SECONDS = 600.0  # a server with few uploads takes snapshots this often, so that old uploads can be deleted
RETRY_SNAPSHOT_SECONDS = 30.0  # pause after a failed snapshot
PRUNE_SECONDS = 60.0  # old data are deleted this often
SWEEP_SECONDS = 600.0  # blobs that nothing refers to are looked for this often, if several servers share a store
FORGET_SECONDS = 1.0  # requests to forget a client are checked this often
SCRUB_SECONDS = 1.0  # one blob is read this often, to find damage before it is needed


class Maintenance:
    """Snapshots, deletions, forgotten clients. The thread that commits calls it; long work runs in another thread."""

    def __init__(
        self,
        store: Store,
        snapshot_every: int,
        clock: Callable[[], float] = time.monotonic,
        on_forget: Callable[[str], None] = lambda client_id: None,
        on_damage: Callable[[], None] = lambda: None,
    ) -> None:
        self.store, self.snapshot_every = store, snapshot_every
        self.on_forget = on_forget  # called after a client was forgotten
        self._scrub, self._scrub_time = Scrub(store, on_damage), clock()
        self._clock = clock
        self._snapshot_epoch = max((snapshot.epoch for snapshot in store.snapshots()), default=0)
        self._snapshot_time = self._prune_time = self._forget_time = self._sweep_time = clock()
        self._failed_time = -math.inf
        self._forgetting: set[str] = set()  # clients of whom it is not known yet that they are forgotten
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cdfl-snapshot")
        self._work: Future[None] | None = None

    def run_due(self, state: ServerState) -> None:
        """Do what is due; `state` is the newest. Raises StoreLost if another server owns the store now."""
        if self._work is None or self._work.done():
            if self._work is not None and isinstance(lost := self._work.exception(), StoreLost):
                raise lost
            if self._is_snapshot_due(state):
                self._work = self._worker.submit(self._snapshot, state)
            elif self._clock() - self._prune_time >= PRUNE_SECONDS:
                self._work = self._worker.submit(self._prune)
            elif self.store.is_shared and self._clock() - self._sweep_time >= SWEEP_SECONDS:
                self._sweep_time = self._clock()
                self._work = self._worker.submit(self._sweep)
            elif self._clock() - self._scrub_time >= SCRUB_SECONDS:
                self._scrub_time = self._clock()
                self._work = self._worker.submit(self._scrub.step)
        if self._clock() - self._forget_time >= FORGET_SECONDS:
            self._forget_time = self._clock()
            self._forget(self.store.asked_to_forget(), state)

    def _forget(self, asked: list[str], state: ServerState) -> None:
        for client_id in sorted(self._forgetting.difference(asked)):  # a COMMIT that seemed to fail has forgotten it
            self._forgot(client_id)
        for client_id in asked:
            self._forgetting.add(client_id)
            self.store.forget(client_id, state)
            self._forgot(client_id)

    def _forgot(self, client_id: str) -> None:
        self._forgetting.discard(client_id)
        self.on_forget(client_id)
        logger.info("a client was forgotten")

    def finish(self, state: ServerState) -> None:
        """Take the last snapshot."""
        self._worker.shutdown()
        if state.epoch > self._snapshot_epoch:
            with suppress(StoreLost):  # the new owner takes the snapshot
                self._snapshot(state)

    def _is_snapshot_due(self, state: ServerState) -> bool:
        new = state.epoch - self._snapshot_epoch
        age = self._clock() - self._snapshot_time
        is_time = new >= self.snapshot_every or (new > 0 and age >= SNAPSHOT_SECONDS)
        return is_time and self._clock() - self._failed_time >= RETRY_SNAPSHOT_SECONDS

    def _snapshot(self, state: ServerState) -> None:
        """Take a snapshot. A failed one loses no data: the next start replays more entries."""
        self._snapshot_time = self._prune_time = self._clock()
        try:
            self.store.snapshot(state)
            self._snapshot_epoch = state.epoch
        except StoreLost:
            raise
        except StoreError as error:
            self._failed_time = self._clock()
            logger.warning("no snapshot of epoch %d: %s", state.epoch, error)

    def _prune(self) -> None:
        self._prune_time = self._clock()
        try:
            self.store.prune()
        except StoreLost:
            raise
        except StoreError as error:
            logger.warning("old data were not deleted: %s", error)

    def _sweep(self) -> None:
        with suppress(StoreUnavailable):
            self.store.sweep()


class Scrub:
    """Reads all blobs, one at a time and again and again, and logs those that are not what was written."""

    def __init__(self, store: Store, on_damage: Callable[[], None] = lambda: None) -> None:
        self._store, self._on_damage = store, on_damage
        self._left: list[str] = []
        self._damaged: set[str] = set()

    def step(self) -> None:
        """Check the next blob; a damaged one is logged once."""
        with suppress(StoreUnavailable):
            self._left = self._left or self._store.all_blobs()[::-1]
            name = self._left.pop() if self._left else None
            if name is None or name in self._damaged:
                return
            try:
                if self._store.check_blob(name) or name not in self._store.all_blobs():
                    return
                fault = f"the blob {name} is missing"
            except StoreDamaged as error:
                fault = error.what
            self._damaged.add(name)
            logger.error("%s; make a new snapshot by restarting the server, or restore it from a backup", fault)
            self._on_damage()


class Outage:
    """Whether the store is unavailable; logs when that begins and ends. May be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._turn = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Return whether the store is known to be unavailable."""
        return self._since is not None

    def begin(self, error: StoreUnavailable) -> None:
        """Note that the store could not be used."""
        with self._turn:
            is_known = self.is_on
            if not is_known:
                self._since = self._clock()
        if not is_known:
            logger.warning("the store is unavailable: %s; clients are asked to try again later", error)

    def end(self) -> None:
        """Note that the store can be read and written."""
        with self._turn:
            since, self._since = self._since, None
        if since is not None:
            logger.warning("the store is back, after %.0f s; nothing was lost", self._clock() - since)
