"""A front end beside the owner of the store: it offers uploads, and follows what the owner commits."""

import time
from collections.abc import Sequence

from cdfl.core import Layout, ServerState, Settings
from cdfl.server import forwarding, queries
from cdfl.server.database import UncertainCommit
from cdfl.server.replies import Replies
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreDamaged
from cdfl.server.store_records import Entry
from cdfl.server.submission import RETRY_SECONDS, Submission
from cdfl.server.upload_losses import drop, unavailable
from cdfl.wire import UnavailableError, UnfitError, WireError

CHECK_SECONDS = 0.1  # refusals are looked for this often
PAGE = 256  # entries read at once


class Follower:
    """Offers uploads and waits for their entries. Used by the engine's second thread."""

    def __init__(self, store: Store, layout: Layout, settings: Settings, replies: Replies) -> None:
        self.store, self.layout, self.settings, self.replies = store, layout, settings, replies
        self._offered: dict[str, Submission] = {}  # by the blob of the upload
        self._checked = 0.0
        self._forgotten = self._num_forgotten() if store.is_shared else 0

    @property
    def waits(self) -> bool:
        """Return whether some of our uploads are not answered yet."""
        return bool(self._offered)

    def offer(self, group: Sequence[Submission]) -> None:
        """Offer uploads to the owner, which fetches their bases itself."""
        for submission in group:
            self.store.drop(submission.base)
            submission.base = None
        try:
            forwarding.offer(self.store, group)
        except UncertainCommit as error:  # they may be offered: then clients find the reply when they send them again
            for submission in group:
                submission.answer.set_exception(unavailable(submission, error))
            raise
        except Exception as error:
            for submission in group:
                drop(self.store, submission, unavailable(submission, error))
            raise
        self._offered |= {submission.upload: submission for submission in group}

    def advance(self, state: ServerState) -> tuple[ServerState, list[Entry]]:
        """Return the state after what the owner has committed since, and the new entries."""
        left = self._left()  # before the entries are read, so that one that is gone is among them
        entries = self.store.entries(self.store.number, PAGE)
        if entries:
            state = self._replayed(state, entries)
            self.store.follow(entries[-1].epoch, entries[-1].number)
        self.answer(entries)
        if left is not None and len(entries) < PAGE:
            self._refuse(left)
        return state, entries

    def answer(self, entries: Sequence[Entry]) -> None:
        """Answer our uploads among new entries."""
        mine = {(each.client_id, each.key): each for each in self._offered.values()} if self._offered else {}
        for entry in entries:
            submission = mine.get((entry.client_id, entry.key))
            if submission is not None:
                self._offered.pop(submission.upload, None)
                self._answer(submission, entry)

    def has_forgotten(self) -> bool:
        """Return whether a client was forgotten since the last call; what waits of it is refused by the owner."""
        before, self._forgotten = self._forgotten, self._num_forgotten()
        return before != self._forgotten

    def _num_forgotten(self) -> int:
        with self.store.reading() as connection:
            self.store.journal_start = queries.journal_start(connection)
            return queries.num_forgotten(connection)

    def _replayed(self, state: ServerState, entries: Sequence[Entry]) -> ServerState:
        try:
            for entry in entries:
                if entry.epoch > state.epoch:
                    state, _ = self.store.replay(state, entry, self.settings, self.layout)
        except StoreDamaged:  # the owner has deleted uploads that a newer snapshot covers
            recovered = self.store.recover()
            if recovered is None or recovered.state.epoch < entries[-1].epoch:
                raise
            state = recovered.state
        return state

    def _answer(self, submission: Submission, entry: Entry) -> None:
        if entry.digest != submission.digest:
            why = "the key was used with another body, at another server; use a new one for every upload"
            submission.answer.set_exception(UnfitError(why))
            return
        try:
            submission.answer.set_result(self.replies.stored(entry))
        except WireError as error:
            submission.answer.set_exception(error)
        except Exception as error:
            submission.answer.set_exception(unavailable(submission, error))

    def _left(self) -> dict[str, WireError | None] | None:
        """Return those of our offers that are still there; None if it is too early to look."""
        now = time.monotonic()
        if not self._offered or now - self._checked < CHECK_SECONDS:
            return None
        self._checked = now
        return forwarding.answers(self.store, list(self._offered))

    def _refuse(self, left: dict[str, WireError | None]) -> None:
        """Answer uploads that were refused, and those that are gone since their client was forgotten."""
        gone = UnavailableError("the server has lost the upload; send it again", retry_after=RETRY_SECONDS)
        refused = {name: left.get(name, gone) for name in self._offered}
        for name, error in refused.items():
            if error is not None:
                self._offered.pop(name).answer.set_exception(error)
        read = [name for name, error in left.items() if error is not None]
        if read:
            with self.store.writing() as connection:
                queries.delete_offers(connection, read)
