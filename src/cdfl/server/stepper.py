"""The steps of a server: uploads in order through `core.server_update`, ready to be committed."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cdfl.core import (
    GIVEN,
    ClientMemory,
    Defence,
    Evaluate,
    Guard,
    Layout,
    NotFiniteError,
    ServerState,
    Settings,
    Upload,
    base_model_of,
    defence_of,
    estimator_of,
    is_too_stale,
    personalize,
    reply_weights,
    server_update,
)
from cdfl.core.estimate import with_losses
from cdfl.core.guard import tried_on_base
from cdfl.server.metrics import Metrics
from cdfl.server.recorded_losses import Recording
from cdfl.server.replies import Replies
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreDamaged
from cdfl.server.store_records import Entry
from cdfl.server.submission import Parts, Submission
from cdfl.server.upload_losses import Foreseen, as_upload, drop, unavailable
from cdfl.wire import UnfitError, WireError, body_parts

logger = logging.getLogger("cdfl.server")


@dataclass(frozen=True, eq=False)
class Step:
    """One upload of a group that is not committed yet."""

    submission: Submission
    entry: Entry
    body: Parts  # of the reply


class Stepper:
    """Decides about uploads. `evaluate` returns losses of clusters, `trial` those with which the guard tries steps."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        settings: Settings,
        replies: Replies,
        metrics: Metrics,
        evaluate: Evaluate,
        trial: Evaluate | None,
    ) -> None:
        self.store, self.layout, self.settings, self.replies, self.metrics = store, layout, settings, replies, metrics
        self.evaluate, self.trial = evaluate, trial
        self.cores: int | None = None  # for evaluation; None for those that torch uses

    def fetch_base(self, submission: Submission) -> None:
        """Fetch the model that the client was sent. If it was deleted, `core.base_model_of` replaces it."""
        if submission.sent is None:
            return
        try:
            experts = self.store.read_sent_experts(submission.sent, self.layout, self.replies.num_clusters)
            if experts is not None:
                submission.base_model, submission.sent_experts = self._mixed(experts[0], submission), experts[1]
                return
            submission.base = self.store.keep_sent(submission.sent)
            if submission.base is not None:
                submission.base_model = self.store.read_model(submission.base, self.layout)
        except (StoreDamaged, WireError) as error:
            logger.warning("the model %s was sent cannot be used: %s", submission.client_id, error)
            self.store.drop(submission.base)
            submission.base = None
        except Exception as error:  # as in `steps`
            drop(self.store, submission, unavailable(submission, error))

    def _mixed(self, experts: Tensor, submission: Submission) -> Tensor:
        """Return what an upload was trained from: the experts that its client was sent, mixed as the client does.

        That is by the mixture that came with the upload, or by that of the reply.
        """
        mixture = submission.client.mixture if submission.mixture is None else submission.mixture
        if mixture is None:
            mixture = torch.full((len(experts),), 1 / len(experts), dtype=torch.float64)
        return personalize(experts, reply_weights(mixture, self.settings.rates))

    def steps(self, state: ServerState, group: Sequence[Submission]) -> tuple[ServerState, list[Step]]:
        """Return the state after a group; an upload that cannot be applied is refused and changes nothing."""
        steps: list[Step] = []
        for submission in group:
            try:
                state, step = self._step(state, submission)
                steps.append(step)
            except NotFiniteError as error:
                drop(self.store, submission, UnfitError(str(error)))
            except Exception as error:
                drop(self.store, submission, unavailable(submission, error))
        return state, steps

    def _evaluated(self, state: ServerState, upload: Upload, client: ClientMemory, defence: Defence) -> Upload:
        """Return an upload with its losses, also if it seemed to be refused when others were evaluated, and is not.

        They are not on the tape: the journal has them. Those of an upload that is bounded are.
        """
        is_known = upload.losses is not None or upload.mixture is not None
        if is_known or is_too_stale(state.epoch + 1 - upload.base_epoch, self.settings.rates):
            return upload
        admitted, verdict = defence.admit(state, upload, client)
        if not verdict.is_accepted or admitted.local_model is not upload.local_model:
            return upload
        _, known = with_losses(state, upload, estimator_of(self.settings), Recording(self.cores).of(self.evaluate))
        return upload.replace(losses=known.losses)

    def _trial_of(self, submission: Submission) -> Evaluate:
        """Return `trial`, with what was tried already."""
        assert self.trial is not None  # noqa: S101
        guard = defence_of(self.settings)
        if submission.tried is None or submission.base_model is None or not isinstance(guard, Guard):
            return self.trial
        return Foreseen(self.trial, tried_on_base(as_upload(submission), self.layout.num_parameters), submission.tried)

    def _step(self, state: ServerState, submission: Submission) -> tuple[ServerState, Step]:
        begun, tape = time.perf_counter(), Recording(self.cores)
        upload = as_upload(submission)
        # A base model that replaces a lost one is journalled, too, so it is computed here.
        upload = upload.replace(base_model=base_model_of(state, upload, self.settings, submission.client))
        defence = defence_of(self.settings, tape.of(self._trial_of(submission)) if self.trial else None)
        estimator = None if submission.mixture is None else GIVEN
        upload = self._evaluated(state, upload, submission.client, defence)
        evaluate = tape.of(self.evaluate)
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
            body = self.replies.body(after, reply, wants_model=submission.wants_model)
        self.metrics.seconds.labels("evaluate").observe(tape.seconds)
        self.metrics.seconds.labels("apply").observe(time.perf_counter() - begun - tape.seconds)
        return after, Step(submission, entry, body)
