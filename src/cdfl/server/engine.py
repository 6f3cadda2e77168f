"""The engine owns the one state of a server. Uploads wait in its queue and are applied in order.

Two threads do the work. The first evaluates the uploads that wait, and fetches the models they were trained from; this
depends only on the upload, so it needs neither lock nor order. The second takes evaluated uploads in order
through `core.server_update` and commits them in groups. After the commit it publishes the new state and answers the
clients. If the commit fails, the state stays as it was.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from cdfl.core import (
    GIVEN,
    NEWCOMER,
    ClientMemory,
    Evaluate,
    Layout,
    NotFiniteError,
    Reply,
    ServerState,
    Settings,
    Upload,
    Verdict,
    base_model_of,
    defence_of,
    is_too_stale,
    join,
    personalize,
    reply_weights,
    server_update,
)
from cdfl.server.blobs import digest_in, digest_of
from cdfl.server.errors import StoreDamaged, StoreLost, StoreUnavailable, Withdrawn
from cdfl.server.limits import MEGABYTE, Limits, MeanTime
from cdfl.server.maintenance import Maintenance, Outage
from cdfl.server.matrices import Matrices
from cdfl.server.metrics import Metrics
from cdfl.server.records import Claim, Entry
from cdfl.server.store import Store
from cdfl.server.tape import Recording
from cdfl.wire import (
    ForbiddenError,
    ReplyHead,
    UnauthorizedError,
    UnavailableError,
    UnfitError,
    WireError,
    body_parts,
    encode_experts,
    expert_type,
)

logger = logging.getLogger("cdfl.server")

Parts = tuple[bytes | memoryview, ...]
GROUP = 32  # at most this many uploads are evaluated or committed together
GROUP_BYTES = 512 * MEGABYTE  # limit for a group's replies and base models, which are in memory together
RETRY_SECONDS = 2.0  # clients are asked to wait this long
MAINTENANCE_SECONDS = 1.0  # `Maintenance` runs this often while no uploads come
JOIN_TRIES = 2  # a client that is forgotten while it joins may join again
REVOKED = "the token was revoked, or the client was forgotten; ask the operator for a new one"


class Evaluator(Protocol):
    """Evaluates models on the proxy sets, as `core.ProxySets` does."""

    def __call__(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the set of the cluster beside it (n,)."""
        ...

    def of_each(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the losses of n models (P,) on every set (n, K)."""
        ...


@dataclass(eq=False)
class Submission:
    """A received upload: checked and durable, it waits to be applied."""

    client_id: str
    key: str
    base_epoch: int
    digest: str
    local_model: Tensor  # (P,)
    upload: str  # blob of the local model
    claim: Claim  # why its client may write
    client: ClientMemory = NEWCOMER
    was_rejected: bool = False  # its client's last upload
    sent: str | None = None  # blob of the model that the client was sent at `base_epoch`; None if deleted
    mixture: Tensor | None = None  # (K,) the client's own estimate, if it came with the upload
    wants_model: bool = False  # the client asks for one model, not for experts
    sent_experts: bytes | None = None  # what the client was sent at `base_epoch`, if that are experts
    report: tuple[float, ...] = ()  # what its client says of its last reply
    received: float = field(default_factory=time.time)
    losses: Tensor | None = None  # (K,) once they are known
    base: str | None = None  # blob of the model it was trained from, once it is kept
    base_model: Tensor | None = None  # (P,) that model
    answer: "Future[Answer]" = field(default_factory=Future)


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client gets: the headers, and the model in float32 or the experts."""

    head: ReplyHead
    body: Parts
    digest: str = ""  # sha256 of the body, if it is known


@dataclass(frozen=True, eq=False)
class _Step:
    """One upload of a group that is not committed yet."""

    submission: Submission
    entry: Entry
    body: Parts  # of the reply


class Listener(Protocol):
    """Is told what happens on a server. Calls come from the engine's threads and must return at once."""

    def joined(self, client_id: str) -> None:
        """Note that a new client was sent a model."""
        ...

    def committed(self, entries: Sequence[Entry]) -> None:
        """Note that uploads were answered and are durable."""
        ...

    def forgot(self, client_id: str) -> None:
        """Forget a client."""
        ...


class Engine:
    """The state, the queue before it, and the threads that empty it. May be called from any thread.

    `evaluate_uploads` is used by one thread only, and so are `evaluate_clusters` and `trial`, with which the guard
    tries steps on parts of the proxy sets.
    """

    def __init__(
        self,
        state: ServerState,
        layout: Layout,
        settings: Settings,
        store: Store,
        evaluate_uploads: Evaluator,
        evaluate_clusters: Evaluate,
        *,
        trial: Evaluate | None = None,
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
        self.router = router  # as clients get it; None if replies are one model
        self.router_digest = "" if router is None else digest_of(router)
        self._experts: tuple[ServerState, Parts] | None = None  # the last ones that were encoded
        self.listeners: list[Listener] = []  # told what happens, by the thread in which it does
        self.matrices = matrices
        self.clock = clock  # of the uploads, in seconds since 1970
        self.cluster_names = list(cluster_names) or [f"cluster {number}" for number in range(state.num_clusters)]
        self.on_loss = on_loss  # called once if the store is lost: the server must stop
        self.lost: str | None = None  # why the store is lost
        self.maintenance = Maintenance(
            store, snapshot_every, on_forget=self._forgot, on_damage=self.metrics.damaged.inc
        )
        self.outage = Outage()
        self._evaluate_uploads, self._evaluate_clusters, self._trial = evaluate_uploads, evaluate_clusters, trial
        self._defence = defence_of(settings)
        self._needs_base = settings.rates.cluster_step == "along" or self._defence.needs_base
        upload_bytes = 4 * layout.size * (2 if self._needs_base else 1)
        self.capacity = limits.queue_of(upload_bytes)
        self._group_size = max(1, min(GROUP, GROUP_BYTES // upload_bytes))
        self._depth, self._turn = 0, threading.Lock()
        self._evaluating, self._applying = MeanTime(), MeanTime()
        self._waiting: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._evaluated: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._closed = False
        self._cores = torch.get_num_threads()  # for evaluation; a new thread may have another number, and other bits
        self._threads = [
            threading.Thread(target=work, name=f"cdfl-{name}", daemon=True)
            for name, work in (("evaluate", self._evaluate_all), ("apply", self._apply_all))
        ]
        self.metrics.queue.set_function(lambda: self._depth)
        self.metrics.clients.set_function(self._count_clients)
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
        body = self._body(state, reply, wants_model=wants_model)
        is_recorded = record is not None and (record.sent is not None if self._needs_base else record.was_sent)
        if not is_recorded:
            claim = replace(claim, since=None if record is None else record.since)
            self.store.record_sent(claim.client_id, reply.epoch, body if self._needs_base else None, claim)
        self.metrics.joins.inc()
        if record is None:
            for listener in self.listeners:
                listener.joined(claim.client_id)
        return self.answer(ReplyHead(reply.epoch, tuple(reply.mixture.tolist())), body)

    def answer(self, head: ReplyHead, body: "Parts", digest: str = "") -> Answer:
        """Return an answer whose headers say what its body is."""
        experts = expert_type(body[0], self.layout, self.state.num_clusters) if self.router else None
        if experts is not None:
            head = replace(head, experts=experts, router=self.router_digest)
        return Answer(head, body, digest)

    def _body(self, state: ServerState, reply: Reply, *, wants_model: bool) -> "Parts":
        """Return the body of a reply: the experts of a state, or one model."""
        if self.router is None or wants_model:
            return body_parts(reply.personal_model.cpu(), self.layout)
        known = self._experts
        if known is None or known[0] is not state:
            dtype = self.settings.replies.expert_dtype
            known = self._experts = state, encode_experts(state.cluster_models, self.layout, dtype)
        return known[1]

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
        """Empty the queue, then take a snapshot. Later uploads are refused."""
        with self._turn:
            already, self._closed = self._closed, True
            if not already:
                self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self.maintenance.finish(self.state)

    def stop(self, error: Exception) -> None:
        """Stop for good: the store is lost, or cdfl has a bug."""
        is_first = self.lost is None
        with self._turn:
            already, self._closed = self._closed, True
            if not already:
                self.lost = str(error)
                self._waiting.put(None)
        if is_first:
            is_bug = not isinstance(error, StoreLost)
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

    def _evaluate(self, batch: list[Submission]) -> None:
        """Compute the losses and fetch the bases of uploads, except those that will move nothing."""
        epoch = self.state.epoch + 1  # it only grows
        fresh = [
            each
            for each in batch
            if each.mixture is None  # it says itself where it belongs
            and not is_too_stale(epoch - each.base_epoch, self.settings.rates)
            and not self._is_refused(each)
        ]
        if fresh:
            with self.metrics.timed("evaluate"):
                self._compute_losses(fresh)
        for submission in batch:
            if self._needs_base and submission.sent is not None and not submission.answer.done():
                self._fetch_base(submission, submission.sent)

    def _is_refused(self, submission: Submission) -> bool:
        """Return whether the defence refuses an upload without looking at its losses."""
        model = submission.local_model
        upload = Upload(model, submission.base_epoch, base_model=model, time=submission.received)
        return isinstance(self._defence.admit(self.state, upload, submission.client), Verdict)

    def _compute_losses(self, fresh: list[Submission]) -> None:
        try:
            losses = self._evaluate_uploads.of_each([submission.local_model for submission in fresh])  # (n, K)
        except Exception as error:  # any error of the model or the loss
            if len(fresh) > 1:  # answer those that cause it, and no others
                for submission in fresh:
                    self._compute_losses([submission])
            else:
                self._refuse_for(fresh[0], error)
            return
        for submission, submission.losses in zip(fresh, losses, strict=True):
            if not bool(torch.isfinite(submission.losses).all()):
                self._drop(submission, UnfitError("the model has no finite loss; train with a smaller learning_rate"))

    def _refuse_for(self, submission: Submission, error: Exception) -> None:
        """Refuse an upload that cannot be evaluated; if clusters cannot be evaluated either, it is not its fault."""
        try:
            self._evaluate_uploads.of_each([self.state.cluster_models[0]])
        except Exception:
            self._drop(submission, _unavailable(submission, error))
            return
        logger.info("an upload of %s cannot be evaluated: %s", submission.client_id, error)
        why = f"the loss of the model cannot be computed ({type(error).__name__}); train with a smaller learning_rate"
        self._drop(submission, UnfitError(why))

    def _fetch_base(self, submission: Submission, sent: str) -> None:
        """Fetch the model that the client was sent. If it was deleted, `core.base_model_of` replaces it."""
        try:
            experts = self.store.read_sent_experts(sent, self.layout, self.state.num_clusters)
            if experts is not None:
                submission.base_model, submission.sent_experts = self._mixed(experts[0], submission), experts[1]
                return
            submission.base = self.store.keep_sent(sent)
            if submission.base is not None:
                submission.base_model = self.store.read_model(submission.base, self.layout)
        except (StoreDamaged, WireError) as error:
            logger.warning("the model %s was sent cannot be used: %s", submission.client_id, error)
            self.store.drop(submission.base)
            submission.base = None
        except Exception as error:  # as above
            self._drop(submission, _unavailable(submission, error))

    def _mixed(self, experts: Tensor, submission: Submission) -> Tensor:
        """Return what an upload was trained from: the experts that its client was sent, mixed as the client does.

        That is by the mixture that came with the upload, or by that of the reply.
        """
        mixture = submission.client.mixture if submission.mixture is None else submission.mixture
        if mixture is None:
            mixture = torch.full((len(experts),), 1 / len(experts), dtype=torch.float64)
        return personalize(experts, reply_weights(mixture, self.settings.rates))

    # -- the thread that applies

    def _apply_all(self) -> None:
        use_torch_threads(1)
        is_open = True
        while is_open:
            group, is_open = _take(self._evaluated, self._group_size, timeout=MAINTENANCE_SECONDS)
            try:
                with _timed(self._applying, len(group)):
                    self._apply_group(group)
                if self.outage.is_on:
                    self.store.check()
                    self.outage.end()
                self.maintenance.run_due(self.state)
            except StoreUnavailable as error:
                self.outage.begin(error)
            except Exception as error:  # the store is lost, or cdfl has a bug
                self.stop(error)

    def _apply_group(self, group: list[Submission]) -> None:
        """Apply the uploads of a group, commit them, publish the state, answer the clients."""
        while True:
            state, steps = self._steps(group)
            if not steps:
                return
            try:
                with self.metrics.timed("commit"):
                    claims = [step.submission.claim for step in steps]
                    entries = self.store.commit([(step.entry, step.body) for step in steps], claims)
                break
            except Withdrawn as error:
                group = self._without([step.submission for step in steps], error.client_ids)
            except Exception as error:  # the store has dropped the uploads
                for step in steps:
                    step.submission.answer.set_exception(_unavailable(step.submission, error))
                raise
        self.state = state
        self.metrics.show(state.epoch, state.cluster_losses)
        self.metrics.group.observe(len(steps))
        for step, entry in zip(steps, entries, strict=True):
            self.metrics.uploads.labels(entry.outcome).inc()
            self.metrics.staleness.observe(entry.staleness)
            if entry.outcome == "rejected" and not step.submission.was_rejected:  # not every one of many
                logger.warning("an upload of %s was rejected: %s", entry.client_id, entry.verdict.reason)
            digest = "" if entry.reply is None else digest_in(entry.reply)
            step.submission.answer.set_result(self.answer(reply_head(entry), step.body, digest))
        for listener in self.listeners:
            listener.committed(entries)

    def _without(self, group: list[Submission], client_ids: set[str]) -> list[Submission]:
        """Drop the uploads of clients that were forgotten, or whose tokens were revoked, while they waited."""
        for submission in group:
            if submission.client_id in client_ids:
                self._drop(submission, UnauthorizedError(REVOKED))
        return [submission for submission in group if submission.client_id not in client_ids]

    def _steps(self, group: list[Submission]) -> tuple[ServerState, list[_Step]]:
        """Return the state after a group; an upload that cannot be applied is refused and changes nothing."""
        state, steps = self.state, []
        for submission in group:
            try:
                state, step = self._step(state, submission)
                steps.append(step)
            except NotFiniteError as error:
                self._drop(submission, UnfitError(str(error)))
            except Exception as error:
                self._drop(submission, _unavailable(submission, error))
        return state, steps

    def _step(self, state: ServerState, submission: Submission) -> tuple[ServerState, _Step]:
        begun, tape = time.perf_counter(), Recording(self._cores)
        upload = Upload(
            submission.local_model,
            submission.base_epoch,
            submission.client_id,
            submission.losses,
            submission.mixture,
            base_model=submission.base_model,
            time=submission.received,
        )
        # A base model that replaces a lost one is journalled, too, so it is computed here.
        upload = upload.replace(base_model=base_model_of(state, upload, self.settings, submission.client))
        evaluate = tape.of(self._evaluate_clusters)
        defence = defence_of(self.settings, tape.of(self._trial) if self._trial else None)
        estimator = None if submission.mixture is None else GIVEN
        after, reply = server_update(
            state, upload, self.settings, evaluate, submission.client, estimator=estimator, defence=defence
        )
        is_kept = reply.outcome == "applied" or self.store.retention.keep_uploads
        if upload.base_model is not None and submission.base is None and is_kept:
            submission.base = self.store.keep_base(body_parts(upload.base_model, self.layout))
        entry = Entry.of(
            after,
            upload,
            submission.client,
            reply,
            key=submission.key,
            digest=submission.digest,
            received=submission.received,
            upload=submission.upload,
            base=submission.base,
            evaluated=tape.numbers,
            report=submission.report,
        )
        if reply.outcome == "rejected" and submission.sent_experts and not submission.wants_model:
            body: Parts = (submission.sent_experts,)  # the client keeps what it has
        else:
            body = self._body(after, reply, wants_model=submission.wants_model)
        step = _Step(submission, entry, body)
        self.metrics.seconds.labels("evaluate").observe(tape.seconds)
        self.metrics.seconds.labels("apply").observe(time.perf_counter() - begun - tape.seconds)
        return after, step

    def _drop(self, submission: Submission, error: WireError) -> None:
        """Answer with an error, and delete the upload."""
        self.store.drop(submission.upload, submission.base)
        submission.answer.set_exception(error)


def reply_head(entry: Entry) -> ReplyHead:
    """Return the headers of the reply to an entry; a repeated upload gets the same ones."""
    detail = entry.verdict.reason if entry.outcome == "rejected" else ""
    return ReplyHead(entry.reply_epoch, entry.mixture, entry.rates, entry.staleness, entry.outcome, detail)


def use_torch_threads(count: int) -> None:
    """Set the number of threads that torch uses in the calling thread.

    Evaluation gets all cores. All else is arithmetic on single vectors, which is bound by memory: a second thread
    saves little, and on a busy machine the two wait for each other. The bits of `core.server_update` are the same.
    """
    torch.get_num_threads()  # the first call in a thread takes the number that was set last in any thread
    torch.set_num_threads(count)


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


def _unavailable(submission: Submission, error: Exception) -> WireError:
    """Return the error for a client that may send the same upload again."""
    if not isinstance(error, StoreUnavailable):
        logger.error("an upload of %s could not be applied", submission.client_id, exc_info=error)
    return UnavailableError("the server cannot take the upload now; send it again", retry_after=RETRY_SECONDS)
