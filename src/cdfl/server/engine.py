"""The engine owns the one state of a server. Uploads wait in its queue and are applied in order.

Two threads do the work. The first evaluates the uploads that wait (`Evaluation`). The second takes evaluated uploads in
order through `core.server_update` (`Stepper`) and commits them in groups. After the commit it publishes the new state
and answers the clients. If the commit fails, the state stays as it was.

If several front ends share a store, the second thread of the one that owns it also applies what others offer
(`offers`). In the others it offers the evaluated uploads, follows what the owner commits (`Follower`), and takes over
when the owner is gone: it recovers the state as a restart does.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

import torch

from cdfl.core import NEWCOMER, Layout, ServerState, Settings, defence_of, join
from cdfl.server import forwarding
from cdfl.server.blobs import digest_in
from cdfl.server.cluster_comparison import Matrices
from cdfl.server.follower import Follower
from cdfl.server.limits import MEGABYTE, Limits
from cdfl.server.maintenance import Maintenance, Outage
from cdfl.server.metrics import Metrics
from cdfl.server.replies import Replies
from cdfl.server.stepper import Step, Stepper
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreError, StoreLost, StoreUnavailable, Withdrawn
from cdfl.server.store_records import Claim, Entry
from cdfl.server.submission import RETRY_SECONDS, Answer, Submission, reply_head
from cdfl.server.upload_losses import Evaluation, Evaluators, drop, unavailable
from cdfl.wire import ConflictError, ForbiddenError, ReplyHead, UnauthorizedError, UnavailableError, WireError

logger = logging.getLogger("cdfl.server")

GROUP = 32  # at most this many uploads are evaluated or committed together
GROUP_BYTES = 512 * MEGABYTE  # limit for a group's replies and base models, which are in memory together
MAINTENANCE_SECONDS = 1.0  # `Maintenance` runs this often while no uploads come
OWNER_SECONDS = 0.5  # other front ends look this often whether the owner is gone
JOIN_TRIES = 2  # a client that is forgotten while it joins may join again
REVOKED = "the token was revoked, or the client was forgotten; ask the operator for a new one"
OVERTAKEN = "another upload of this client was taken meanwhile; send it again in a moment"


class Listener(Protocol):
    """Is told what happens on a server. Calls come from the engine's threads and must return at once."""

    def joined(self, client_id: str) -> None:
        """Note that a new client was sent a model."""
        ...

    def committed(self, entries: Sequence[Entry]) -> None:
        """Note that uploads were answered and are durable."""
        ...

    def forgot(self, client_id: str) -> None:
        """Forget a client; "" if another front end forgot it, which does not say which one."""
        ...


class Engine:
    """The state, the queue before it, and the threads that empty it. May be called from any thread.

    `evaluators` are for two threads; each evaluator is used by one of them only.
    """

    def __init__(
        self,
        state: ServerState,
        layout: Layout,
        settings: Settings,
        store: Store,
        evaluators: Evaluators,
        *,
        limits: Limits = Limits(),  # noqa: B008  frozen
        metrics: Metrics | None = None,
        snapshot_every: int = 100,
        matrices: Matrices | None = None,
        router: bytes | None = None,
        cluster_names: Sequence[str] = (),
        on_loss: Callable[[str], None] = lambda why: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state = state  # the last committed one; replaced as a whole
        self.layout, self.settings, self.store, self.limits = layout, settings, store, limits
        self.metrics = metrics or Metrics()
        self.replies = Replies(store, layout, settings, state.num_clusters, router)
        self.listeners: list[Listener] = []  # told what happens, by the thread in which it does
        self.matrices = matrices
        self.clock = clock  # of the uploads, in seconds since 1970
        self.cluster_names = list(cluster_names) or [f"cluster {number}" for number in range(state.num_clusters)]
        self.on_loss = on_loss  # called once if the store is lost: the server must stop
        self.lost: str | None = None  # why the store is lost
        self._snapshot_every = snapshot_every
        self.maintenance = self._maintenance()
        self.outage = Outage()
        defence = defence_of(settings)
        self._needs_base = settings.rates.cluster_step == "along" or defence.needs_base
        upload_bytes = 4 * layout.size * (2 if self._needs_base else 1)
        self.capacity = limits.queue_of(upload_bytes)
        self._group_size = max(1, min(GROUP, GROUP_BYTES // upload_bytes))
        self._depth, self._turn = 0, threading.Lock()
        self._evaluating, self._applying = MeanTime(), MeanTime()
        self._waiting: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._evaluated: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._closed = False
        self._cores = torch.get_num_threads()  # for evaluation; a new thread may have another number, and other bits
        used = evaluators
        self.evaluation = Evaluation(store, settings, defence, used.uploads, self.metrics, used.early_trial)
        self.stepper = Stepper(store, layout, settings, self.replies, self.metrics, used.clusters, used.trial)
        self.stepper.cores = self._cores
        self.follower = Follower(store, layout, settings, self.replies)
        self._was_owner = store.is_owner
        self._offered_time = self._owner_time = -math.inf  # of the last offer, and of the last look for the owner
        self._threads = [
            threading.Thread(target=work, name=f"cdfl-{name}", daemon=True)
            for name, work in (("evaluate", self._evaluate_all), ("apply", self._apply_all))
        ]
        self.metrics.queue.set_function(lambda: self._depth)
        self.metrics.clients.set_function(self._count_clients)
        self.metrics.owner.set_function(lambda: float(store.is_owner))
        self.metrics.show(state.epoch, state.cluster_losses)
        for thread in self._threads:
            thread.start()

    # -- for clients

    def join(self, claim: Claim, *, wants_model: bool = False) -> Answer:
        """Return a reply for a client that uploads nothing, after recording durably that the client was sent it."""
        for _ in range(JOIN_TRIES):
            try:
                return self._join(claim, wants_model=wants_model)
            except Withdrawn:  # it was forgotten meanwhile, and may join again as a newcomer if its token is valid
                continue
        raise UnauthorizedError(REVOKED)

    def _join(self, claim: Claim, *, wants_model: bool) -> Answer:
        if self.outage.is_on:  # do not keep the thread waiting
            raise UnavailableError("the store is unavailable; try again in a moment", retry_after=RETRY_SECONDS)
        state = self.state
        record = self.store.client(claim.client_id, state.epoch)
        if record is None and self.store.num_clients() >= self.limits.clients:
            raise ForbiddenError(f"the server knows {self.limits.clients} clients and takes no more")
        reply = join(state, self.settings, NEWCOMER if record is None else record.memory)
        body = self.replies.body(state, reply, wants_model=wants_model)
        is_recorded = record is not None and (record.sent is not None if self._needs_base else record.was_sent)
        if not is_recorded:
            claim = replace(claim, since=None if record is None else record.since)
            self.store.record_sent(claim.client_id, reply.epoch, body if self._needs_base else None, claim)
        self.metrics.joins.inc()
        if record is None:
            for listener in self.listeners:
                listener.joined(claim.client_id)
        return self.replies.answer(ReplyHead(reply.epoch, tuple(reply.mixture.tolist())), body)

    def check_room(self) -> None:
        """Raise UnavailableError if no upload can be taken now."""
        if self._closed:
            raise UnavailableError("the server is shutting down; try again later", retry_after=RETRY_SECONDS)
        if self.is_full:
            wait = min(60.0, max(RETRY_SECONDS, self._expected_wait / 2))
            raise UnavailableError(f"{self._depth} uploads wait already; try again later", retry_after=wait)

    def submit(self, submission: Submission) -> "Future[Answer]":
        """Put an upload into the queue; the returned future is answered once the upload is durable."""
        with self._turn:
            self.check_room()
            self._depth += 1
            submission.answer.set_running_or_notify_cancel()  # it cannot be cancelled from here on
            submission.answer.add_done_callback(self._leave)
            self._waiting.put(submission)
        return submission.answer

    @property
    def is_full(self) -> bool:
        """Return whether the queue has no room, or another upload would wait too long. The next one always fits."""
        return self._depth >= self.capacity or (self._depth > 1 and self._expected_wait > self.limits.queue_seconds)

    @property
    def _expected_wait(self) -> float:
        """Return the expected seconds until a new upload is answered, from the slower of the two threads."""
        return self._depth * max(self._evaluating.seconds, self._applying.seconds)

    def close(self) -> None:
        """Empty the queue, then take a snapshot if this server owns the store. Later uploads are refused."""
        with self._turn:
            already, self._closed = self._closed, True
            if not already:
                self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        if self.store.is_owner:
            self.maintenance.finish(self.state)

    def lose(self, error: StoreLost) -> None:
        """Note that another server owns the store: follow it if the store is shared, otherwise stop."""
        if self.store.is_shared:
            self.store.disown()
        else:
            self.stop(error)

    def stop(self, error: Exception) -> None:
        """Stop for good: the store is lost, or cdfl has a bug."""
        is_first = self.lost is None
        with self._turn:
            already, self._closed = self._closed, True
            if not already:
                self.lost = str(error)
                self._waiting.put(None)
        if is_first:
            is_bug = not isinstance(error, StoreError)
            logger.critical("the server must stop: %s", error, exc_info=error if is_bug else None)
        if not already:
            self.on_loss(str(error))

    def _count_clients(self) -> float:
        try:
            return self.store.num_clients()
        except StoreUnavailable:
            return math.nan

    def _forgot(self, client_id: str) -> None:
        for listener in self.listeners:
            listener.forgot(client_id)

    def _maintenance(self) -> Maintenance:
        damaged = self.metrics.damaged.inc
        return Maintenance(self.store, self._snapshot_every, on_forget=self._forgot, on_damage=damaged)

    def _leave(self, _: object) -> None:
        with self._turn:
            self._depth -= 1

    # -- the thread that evaluates

    def _evaluate_all(self) -> None:
        use_torch_threads(self._cores)
        is_open = True
        while is_open:
            batch, is_open = _take(self._waiting, self._group_size)
            with _timed(self._evaluating, len(batch)):
                self._evaluate(batch)
            for submission in batch:
                if not submission.answer.done():
                    self._evaluated.put(submission)
        self._evaluated.put(None)

    def _evaluate(self, batch: Sequence[Submission]) -> None:
        """Compute the losses and fetch the bases of uploads, as far as they will be needed."""
        self.evaluation.run(batch, self.state)
        if self.store.is_owner:
            self._fetch_bases(batch)
            self.evaluation.try_steps(batch, self.stepper.layout.num_parameters)

    def _fetch_bases(self, batch: Sequence[Submission]) -> None:
        for submission in batch:
            if self._needs_base and submission.base_model is None and not submission.answer.done():
                self.stepper.fetch_base(submission)

    # -- the thread that applies

    def _apply_all(self) -> None:
        use_torch_threads(1)
        is_open = True
        while is_open or (self.follower.waits and self.lost is None):
            group, has_more = _take(self._evaluated, self._group_size, timeout=self._pause)
            is_open = is_open and has_more
            try:
                if self.store.is_owner:
                    self._apply(group)
                else:
                    self._follow(group)
                self._end_outage()
                if self.store.is_owner:
                    self.maintenance.run_due(self.state)
            except StoreLost as error:
                self.lose(error)
            except StoreUnavailable as error:
                self.outage.begin(error)
            except Exception as error:  # the store is damaged, or cdfl has a bug
                self.stop(error)

    @property
    def _pause(self) -> float:
        """Return how long to wait for an upload of our own before looking what other front ends did."""
        if not self.store.is_shared:
            return MAINTENANCE_SECONDS
        is_busy = self.follower.waits or time.monotonic() - self._offered_time < forwarding.BUSY_SECONDS
        return forwarding.POLL_SECONDS if is_busy else forwarding.QUIET_SECONDS

    def _end_outage(self) -> None:
        if self.outage.is_on:
            self.store.check()
            self.store.settle()
            self.outage.end()

    def _publish(self, state: ServerState) -> None:
        self.state = state
        self.metrics.show(state.epoch, state.cluster_losses)

    def _tell(self, entries: Sequence[Entry]) -> None:
        for listener in self.listeners:
            listener.committed(entries)

    # -- in the owner of the store

    def _apply(self, group: list[Submission]) -> None:
        """Apply our own uploads, then those that other front ends offer."""
        with _timed(self._applying, len(group)):
            self._fetch_bases(group)  # of those that were evaluated before this front end became the owner
            self._apply_group([submission for submission in group if not submission.answer.done()])
        if self.store.is_shared:
            self._apply_offered()

    def _apply_offered(self) -> None:
        """Apply a group of uploads that other front ends have taken; those answer the clients."""
        group = forwarding.waiting(self.store, self._group_size, self.layout)
        if group:
            self._offered_time = time.monotonic()
            self._fetch_bases(group)
            self._apply_group([submission for submission in group if not submission.answer.done()])
            refused = {each.upload: each.answer.exception(0) for each in group if each.answer.done()}
            forwarding.refuse(self.store, {name: why for name, why in refused.items() if isinstance(why, WireError)})
        if self.follower.waits:  # this front end has offered some before it became the owner
            self.follower.advance(self.state)

    def _apply_group(self, group: list[Submission]) -> None:
        """Apply the uploads of a group, commit them, publish the state, answer the clients."""
        group = self._one_of_each_client(group)
        while True:
            state, steps = self.stepper.steps(self.state, group)
            if not steps:
                return
            try:
                with self.metrics.timed("commit"):
                    entries = self._commit(steps)
                break
            except Withdrawn as error:
                group = self._without([step.submission for step in steps], error)
            except Exception as error:  # the store has dropped the uploads, except those that are offered
                for step in steps:
                    if not step.submission.is_offered:
                        step.submission.answer.set_exception(unavailable(step.submission, error))
                raise
        self._publish(state)
        self.metrics.group.observe(len(steps))
        for step, entry in zip(steps, entries, strict=True):
            self.metrics.uploads.labels(entry.outcome).inc()
            self.metrics.staleness.observe(entry.staleness)
            if entry.outcome == "rejected" and not step.submission.was_rejected:  # not every one of many
                logger.warning("an upload of %s was rejected: %s", entry.client_id, entry.verdict.reason)
            digest = "" if entry.reply is None else digest_in(entry.reply)
            step.submission.answer.set_result(self.replies.answer(reply_head(entry), step.body, digest))
        self.follower.answer(entries)
        self._tell(entries)

    def _commit(self, steps: Sequence[Step]) -> list[Entry]:
        group, claims = [(step.entry, step.body) for step in steps], [step.submission.claim for step in steps]
        offered = [step.submission.upload for step in steps if step.submission.is_offered]
        return self.store.commit(group, claims, offered) if offered else self.store.commit(group, claims)

    def _without(self, group: list[Submission], error: Withdrawn) -> list[Submission]:
        """Drop the uploads of clients that were forgotten or revoked, or of which another upload was taken."""
        for submission in group:
            if submission.client_id in error.client_ids:
                drop(self.store, submission, UnauthorizedError(REVOKED))
            elif submission.client_id in error.overtaken:
                drop(self.store, submission, ConflictError(OVERTAKEN, RETRY_SECONDS))
        return [submission for submission in group if not submission.answer.done()]

    def _one_of_each_client(self, group: list[Submission]) -> list[Submission]:
        """Drop all uploads of a client but the first: what is known of the client changes with that one."""
        first: dict[str, Submission] = {}
        for submission in group:
            if first.setdefault(submission.client_id, submission) is not submission:
                drop(self.store, submission, ConflictError(OVERTAKEN, RETRY_SECONDS))
        return list(first.values())

    # -- in other front ends

    def _follow(self, group: list[Submission]) -> None:
        """Offer our uploads to the owner, follow what it commits, and take over if it is gone."""
        if self._was_owner:
            self._was_owner = False
            logger.warning("another server may apply uploads now; this one takes them for it")
        self.follower.offer(group)
        self._advance()
        if time.monotonic() - self._owner_time >= OWNER_SECONDS:
            self._owner_time = time.monotonic()
            if self.follower.has_forgotten():
                self._forgot("")
            if self.store.try_own():
                self._take_over()

    def _advance(self) -> bool:
        """Follow what the owner has committed; return whether there was anything."""
        state, entries = self.follower.advance(self.state)
        if entries:
            self._publish(state)
            self._tell(entries)
        return bool(entries)

    def _take_over(self) -> None:
        """Recover the state as a restart does; apply uploads from now on."""
        try:
            while self._advance():
                pass
            recovered = self.store.recover()
            self.store.read_on()
            if recovered is None or recovered.settings != self.settings:
                raise StoreError("another server has changed the settings of the store; start this one with the same")
            self._publish(recovered.state)
            self.maintenance = self._maintenance()
        except BaseException:
            self.store.disown()
            raise
        self._was_owner = True
        logger.warning("this server applies the uploads now, from epoch %d on", recovered.state.epoch)


def use_torch_threads(count: int) -> None:
    """Set the number of threads that torch uses in the calling thread.

    Evaluation gets all cores. All else is arithmetic on single vectors, which is bound by memory: a second thread
    saves little, and on a busy machine the two wait for each other. The bits of `core.server_update` are the same.
    """
    torch.get_num_threads()  # the first call in a thread takes the number that was set last in any thread
    torch.set_num_threads(count)


class MeanTime:
    """Running mean of the seconds that an upload takes."""

    DECAY = 0.9

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float, num_uploads: int) -> None:
        """Add uploads that took so many seconds together."""
        kept = self.DECAY**num_uploads if self.seconds else 0.0
        self.seconds = kept * self.seconds + (1 - kept) * seconds / num_uploads


@contextmanager
def _timed(mean: MeanTime, num_uploads: int) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    if num_uploads:
        mean.add(time.perf_counter() - begun, num_uploads)


def _take(
    source: "queue.SimpleQueue[Submission | None]", most: int, timeout: float | None = None
) -> tuple[list[Submission], bool]:
    """Take at most `most` waiting uploads; wait up to `timeout` for the first. The flag is False at the end."""
    taken: list[Submission] = []
    with suppress(queue.Empty):
        while len(taken) < most:
            submission = source.get(block=not taken, timeout=timeout)
            if submission is None:
                return taken, False
            taken.append(submission)
    return taken, True
