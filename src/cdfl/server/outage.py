"""A store that is away for a while: told once when it goes and once when it is back, however many notice."""

import logging
import threading
import time
from collections.abc import Callable

from cdfl.server.journal import StoreUnavailable

logger = logging.getLogger("cdfl.server")


class Outage:
    """Whether the store is away. May be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._turn = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Is the store away, as far as anybody has noticed?"""
        return self._since is not None

    def begins(self, error: StoreUnavailable) -> None:
        """Somebody could not use the store."""
        with self._turn:
            is_known = self.is_on
            if not is_known:
                self._since = self._clock()
        if not is_known:
            logger.warning("the store is away: %s; clients are told to come back, until it is there again", error)

    def ends(self) -> None:
        """The store can be read and written."""
        with self._turn:
            since, self._since = self._since, None
        if since is not None:
            logger.warning("the store is back, after %.0f s; nothing was lost", self._clock() - since)
