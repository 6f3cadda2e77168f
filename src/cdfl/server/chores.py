"""What a server does beside its uploads: snapshots, deleting what is too old, and forgetting clients."""

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from cdfl.core import ServerState
from cdfl.server.journal import StoreError, StoreLost
from cdfl.server.store import Store

logger = logging.getLogger("cdfl.server")

# A snapshot lets uploads be deleted, so a quiet server takes one, too, before they grow old.
SNAPSHOT_SECONDS = 600.0
AGAIN_SECONDS = 30.0  # until a snapshot that failed is tried again
PRUNE_SECONDS = 60.0  # replies grow old where nothing else happens, too
LOOK_SECONDS = 1.0


class Chores:
    """Called by the one thread that commits; what takes longer is done by a thread of its own."""

    def __init__(self, store: Store, snapshot_every: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.snapshot_every = store, snapshot_every
        self._clock = clock
        self._snapshot_epoch = max((snapshot.epoch for snapshot in store.snapshots()), default=0)
        self._snapshot_time = self._prune_time = self._look_time = clock()
        self._failed_time = -math.inf
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cdfl-snapshot")
        self._work: Future[None] | None = None

    def look(self, state: ServerState) -> None:
        """Do what is due; `state` is the newest. StoreLost: another server owns the store now."""
        if self._work is None or self._work.done():
            if self._work is not None and isinstance(lost := self._work.exception(), StoreLost):
                raise lost
            if self._is_due(state):
                self._work = self._worker.submit(self._snapshot, state)
            elif self._clock() - self._prune_time >= PRUNE_SECONDS:
                self._work = self._worker.submit(self._prune)
        if self._clock() - self._look_time >= LOOK_SECONDS:
            self._look_time = self._clock()
            for client_id in self.store.asked_to_forget():
                self.store.forget(client_id, state)
                logger.info("a client was forgotten")

    def finish(self, state: ServerState) -> None:
        """The last snapshot."""
        self._worker.shutdown()
        if state.epoch > self._snapshot_epoch:
            with suppress(StoreLost):  # then it is the other server's to take one
                self._snapshot(state)

    def _is_due(self, state: ServerState) -> bool:
        new = state.epoch - self._snapshot_epoch
        old = self._clock() - self._snapshot_time
        is_time = new >= self.snapshot_every or (new > 0 and old >= SNAPSHOT_SECONDS)
        return is_time and self._clock() - self._failed_time >= AGAIN_SECONDS

    def _snapshot(self, state: ServerState) -> None:
        """A snapshot that fails costs time at the next start, no data: it is tried again later."""
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
            logger.warning("what is too old was not deleted: %s", error)
