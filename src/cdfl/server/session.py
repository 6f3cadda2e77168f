"""Owns the one state of a server. Uploads wait here, are looked at in batches, and are applied in order.

Two threads do the work. One computes the proxy losses of whatever waits, and fetches what it was trained from: these
depend on nothing but the upload, so no lock is held and no order kept. The other takes looked-at uploads in their order
through `core.server_update`, makes a group of them durable with one commit, and only then lets the new state be seen
and the clients be answered. A commit that fails leaves the state as it was.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from cdfl.core import (
    Evaluate,
    Layout,
    NotFiniteError,
    ServerState,
    Settings,
    Upload,
    base_model_of,
    join,
    server_update,
)
from cdfl.device import torch_threads
from cdfl.server.chores import Chores
from cdfl.server.journal import Entry, StoreDamaged, StoreLost, StoreUnavailable
from cdfl.server.limits import MEGABYTE, Limits, Pace
from cdfl.server.metrics import Metrics
from cdfl.server.outage import Outage
from cdfl.server.store import Store
from cdfl.server.threads import use_torch_threads
from cdfl.server.uploads import Answer, Submission, entry_of, head_of
from cdfl.wire import ReplyHead, UnavailableError, UnfitError, WireError, body_parts

logger = logging.getLogger("cdfl.server")

GROUP = 32  # uploads that are looked at, or committed, together at most
GROUP_BYTES = 512 * MEGABYTE  # of a group's replies, and of what it was trained from: all in memory at its end
RETRY_SECONDS = 2.0  # what a client is asked to wait where nothing better is known
CHORE_SECONDS = 1.0


class Evaluator(Protocol):
    """What the server needs of its proxy sets: `core.ProxySets` is one."""

    def __call__(self, models: Tensor, clusters: Tensor) -> Tensor:
        """The loss of each model (n, P) on the set of the cluster beside it (n,)."""
        ...

    def of_each(self, vectors: Sequence[Tensor]) -> Tensor:
        """The losses of n models (P,) on every set (n, K)."""
        ...


@dataclass(frozen=True, eq=False)
class _Step:
    """One upload of a group that is not committed yet."""

    submission: Submission
    entry: Entry
    personal_model: Tensor  # (P,)


class Session:
    """The state, the queue before it, and the threads that empty it. Everything may be called from any thread.

    `look_at_uploads` and `look_at_clusters` are each used by one thread only.
    """

    def __init__(
        self,
        state: ServerState,
        layout: Layout,
        settings: Settings,
        store: Store,
        look_at_uploads: Evaluator,
        look_at_clusters: Evaluate,
        *,
        limits: Limits = Limits(),  # noqa: B008  frozen
        metrics: Metrics | None = None,
        snapshot_every: int = 100,
        on_commit: Callable[[], None] = lambda: None,
        on_loss: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.state = state  # the last committed one; replaced as a whole
        self.layout, self.settings, self.store = layout, settings, store
        self.metrics = metrics or Metrics()
        self.on_commit = on_commit  # told after every commit, in a thread of ours
        self.on_loss = on_loss  # told once if the store is lost for good: the server must stop
        self.lost: str | None = None  # why, if it is
        self.chores = Chores(store, snapshot_every)
        self.outage = Outage()
        self._look_at_uploads, self._look_at_clusters = look_at_uploads, look_at_clusters
        self._is_along = settings.cluster_step == "along"  # then a step needs what the upload was trained from
        upload_bytes = 4 * layout.size * (2 if self._is_along else 1)
        self.capacity = limits.queue_of(upload_bytes)
        self._group = max(1, min(GROUP, GROUP_BYTES // upload_bytes))
        self._depth, self._turn = 0, threading.Lock()
        self._looking, self._applying, self._longest_wait = Pace(), Pace(), limits.queue_seconds
        self._waiting: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._looked_at: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._closed = False
        self._cores = torch.get_num_threads()  # for evaluation; torch gives a new thread another number, and other bits
        self._threads = [
            threading.Thread(target=work, name=f"cdfl-{name}", daemon=True)
            for name, work in (("evaluate", self._evaluate), ("apply", self._apply))
        ]
        self.metrics.queue.set_function(lambda: self._depth)
        self.metrics.show(state.epoch, state.cluster_losses)
        for thread in self._threads:
            thread.start()

    # -- for clients

    def join(self, client_id: str, last_mixture: tuple[float, ...] | None) -> Answer:
        """A model for a client that uploads nothing; that it was given this epoch is durable."""
        state = self.state
        reply = join(state, self.settings, _tensor(last_mixture))
        personal_model = reply.personal_model.cpu()
        self.store.grant(client_id, reply.epoch, body_parts(personal_model, self.layout) if self._is_along else None)
        self.metrics.joins.inc()
        return Answer(ReplyHead(reply.epoch, tuple(reply.mixture.tolist())), personal_model)

    def check_room(self) -> None:
        """Refuse where no upload can be taken now."""
        if self._closed:
            raise UnavailableError("the server is shutting down; come back later", retry_after=RETRY_SECONDS)
        if self.is_full:
            wait = min(60.0, max(RETRY_SECONDS, self._wait / 2))
            raise UnavailableError(f"{self._depth} uploads wait already; come back later", retry_after=wait)

    def submit(self, submission: Submission) -> "Future[Answer]":
        """Put an upload into the queue; its answer comes when it is durable."""
        with self._turn:
            self.check_room()
            self._depth += 1
            submission.answer.set_running_or_notify_cancel()  # from here on nobody can call it back
            submission.answer.add_done_callback(self._leave)
            self._waiting.put(submission)
        return submission.answer

    @property
    def is_full(self) -> bool:
        """Is there no room for another upload, or would it wait too long? One that is next is always taken."""
        return self._depth >= self.capacity or (self._depth > 1 and self._wait > self._longest_wait)

    @property
    def _wait(self) -> float:
        """Seconds until an upload that comes now is answered: the slower of the two threads decides."""
        return self._depth * max(self._looking.seconds, self._applying.seconds)

    def close(self) -> None:
        """Finish what is in the queue, then keep a snapshot. Later uploads are refused."""
        with self._turn:
            already, self._closed = self._closed, True
            if not already:
                self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self.chores.finish(self.state)

    def stop(self, error: Exception) -> None:
        """Go no further: the store is lost for good, or is not what we take it for."""
        is_news = self.lost is None
        with self._turn:
            already, self._closed = self._closed, True
            if not already:
                self.lost = str(error)
                self._waiting.put(None)
        if is_news:
            is_mistake = not isinstance(error, StoreLost)
            logger.critical("the server must stop: %s", error, exc_info=error if is_mistake else None)
        if not already:
            self.on_loss(str(error))

    def _leave(self, _: object) -> None:
        with self._turn:
            self._depth -= 1

    # -- the thread that looks at uploads

    def _evaluate(self) -> None:
        use_torch_threads(self._cores)
        going_on = True
        while going_on:
            batch, going_on = _take(self._waiting, self._group)
            with _paced(self._looking, len(batch)):
                self._look_at(batch)
            for submission in batch:
                if not submission.answer.done():
                    self._looked_at.put(submission)
        self._looked_at.put(None)

    def _look_at(self, batch: list[Submission]) -> None:
        """Compute losses, and find bases; uploads that will be deprecated in any case need neither."""
        limit = self.settings.max_staleness
        oldest = 0 if limit is None else self.state.epoch + 1 - limit  # the epoch only grows
        fresh = [submission for submission in batch if submission.base_epoch >= oldest]
        if not fresh:
            return
        try:
            with self.metrics.timed("evaluate"):
                losses = self._look_at_uploads.of_each([submission.local_model for submission in fresh])  # (n, K)
        except Exception as error:  # whatever it is: these clients are told, and the others are served
            for submission in fresh:
                self._drop(submission, _away(submission, error))
            return
        for submission, submission.losses in zip(fresh, losses, strict=True):
            if not bool(torch.isfinite(submission.losses).all()):
                self._drop(submission, UnfitError("the model has no finite loss; train with a smaller learning_rate"))
            elif self._is_along:
                self._find_base(submission)

    def _find_base(self, submission: Submission) -> None:
        """Fetch the model that the upload was trained from, as its client was sent it. It may be gone: see `_step`."""
        try:
            submission.base = self.store.keep_sent(submission.client_id, submission.base_epoch)
            if submission.base is not None:
                submission.base_model = self.store.read_model(submission.base, self.layout)
        except (StoreDamaged, WireError) as error:
            logger.warning("the model %s was sent cannot be used: %s", submission.client_id, error)
            self.store.drop(submission.base)
            submission.base = None
        except Exception as error:  # as above
            self._drop(submission, _away(submission, error))

    # -- the thread that applies them

    def _apply(self) -> None:
        use_torch_threads(1)
        going_on = True
        while going_on:
            group, going_on = _take(self._looked_at, self._group, patience=CHORE_SECONDS)
            try:
                with _paced(self._applying, len(group)):
                    self._take_group(group)
                if self.outage.is_on:
                    self.store.check()
                    self.outage.ends()
                self.chores.look(self.state)
            except StoreUnavailable as error:
                self.outage.begins(error)
            except Exception as error:  # it is lost for good, or we are wrong about it: go no further
                self.stop(error)

    def _take_group(self, group: list[Submission]) -> None:
        """Apply, commit, show, answer."""
        state, steps = self._steps(group)
        if not steps:
            return
        try:
            with self.metrics.timed("commit"):
                self.store.commit([(step.entry, body_parts(step.personal_model, self.layout)) for step in steps])
        except Exception as error:  # the store has dropped the uploads
            for step in steps:
                step.submission.answer.set_exception(_away(step.submission, error))
            raise
        self.state = state
        self.metrics.show(state.epoch, state.cluster_losses)
        self.metrics.group.observe(len(steps))
        for step in steps:
            self.metrics.uploads.labels(step.entry.outcome).inc()
            if step.entry.outcome == "rejected":
                logger.warning(
                    "an upload of %s was rejected and moves nothing: its harm is %.3g, that client's past %.3g, "
                    "usual is %s",
                    step.entry.client_id,
                    step.entry.harm,
                    step.entry.past_harm,
                    "nothing yet" if step.entry.usual_harm is None else f"{step.entry.usual_harm:.3g}",
                )
            step.submission.answer.set_result(Answer(head_of(step.entry), step.personal_model))
        self.on_commit()

    def _steps(self, group: list[Submission]) -> tuple[ServerState, list[_Step]]:
        """The state after a group; an upload that turns out to be unfit is refused and changes nothing."""
        state, steps = self.state, []
        for submission in group:
            try:
                state, step = self._step(state, submission)
                steps.append(step)
            except NotFiniteError as error:
                self._drop(submission, UnfitError(str(error)))
            except Exception as error:
                self._drop(submission, _away(submission, error))
        return state, steps

    def _step(self, state: ServerState, submission: Submission) -> tuple[ServerState, _Step]:
        last_mixture = _tensor(submission.last_mixture)
        begun, looking = time.perf_counter(), 0.0
        upload = Upload(
            submission.local_model,
            submission.base_epoch,
            submission.client_id,
            submission.losses,
            base_model=submission.base_model,
            past_harm=submission.past_harm,
        )
        # What stands in for a base that is gone is written down with the upload.
        upload = replace(upload, base_model=base_model_of(state, upload, self.settings, last_mixture))

        def evaluate(models: Tensor, clusters: Tensor) -> Tensor:
            nonlocal looking
            begun = time.perf_counter()
            with torch_threads(self._cores):
                losses = self._look_at_clusters(models, clusters).cpu()
            looking += time.perf_counter() - begun
            return losses

        state, reply = server_update(state, upload, self.settings, evaluate, last_mixture)
        if upload.base_model is not None and submission.base is None and not (reply.deprecated or reply.rejected):
            submission.base = self.store.keep_base(body_parts(upload.base_model, self.layout))
        submission.base_model = None
        step = _Step(submission, entry_of(submission, state, reply), reply.personal_model.cpu())
        self.metrics.seconds.labels("evaluate").observe(looking)
        self.metrics.seconds.labels("apply").observe(time.perf_counter() - begun - looking)
        return state, step

    def _drop(self, submission: Submission, error: WireError) -> None:
        """Tell a client, and keep nothing of its upload."""
        self.store.drop(submission.upload, submission.base)
        submission.answer.set_exception(error)


@contextmanager
def _paced(pace: Pace, uploads: int) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    if uploads:
        pace.saw(time.perf_counter() - begun, uploads)


def _take(
    source: "queue.SimpleQueue[Submission | None]", most: int, patience: float | None = None
) -> tuple[list[Submission], bool]:
    """Everything that waits, up to a number of uploads; False: it was the end. Waits `patience` for the first."""
    taken: list[Submission] = []
    with suppress(queue.Empty):
        while len(taken) < most:
            submission = source.get(block=not taken, timeout=patience)
            if submission is None:
                return taken, False
            taken.append(submission)
    return taken, True


def _away(submission: Submission, error: Exception) -> WireError:
    """Not the client's fault: it may come back with the same upload."""
    if not isinstance(error, StoreUnavailable):
        logger.error("an upload of %s could not be worked on", submission.client_id, exc_info=error)
    return UnavailableError("the server cannot take the upload now; send it again", retry_after=RETRY_SECONDS)


def _tensor(values: tuple[float, ...] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float64)
