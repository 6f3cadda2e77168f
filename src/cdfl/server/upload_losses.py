"""Evaluate uploads on the proxy sets. This depends on the upload only, so it needs neither lock nor order."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cdfl.core import Defence, Evaluate, ServerState, Settings, Upload, is_too_stale
from cdfl.server.metrics import Metrics
from cdfl.server.store import Store
from cdfl.server.store_errors import StoreUnavailable
from cdfl.server.submission import RETRY_SECONDS, Submission
from cdfl.wire import UnavailableError, UnfitError, WireError

logger = logging.getLogger("cdfl.server")


class Evaluator(Protocol):
    """Evaluates models on the proxy sets, as `core.ProxySets` does."""

    def __call__(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the set of the cluster beside it (n,)."""
        ...

    def of_each(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the losses of n models (P,) on every set (n, K)."""
        ...


@dataclass(frozen=True, eq=False)
class Evaluators:
    """What an engine evaluates with. The first belongs to one thread, the others to another."""

    uploads: Evaluator
    clusters: Evaluate
    trial: Evaluate  # for the guard, which tries steps on parts of the proxy sets


class Evaluation:
    """Computes the losses of uploads, and refuses those that cannot be evaluated."""

    def __init__(
        self, store: Store, settings: Settings, defence: Defence, evaluate: Evaluator, metrics: Metrics
    ) -> None:
        self.store, self.settings, self.metrics = store, settings, metrics
        self.evaluate = evaluate
        self._defence = defence

    def run(self, batch: Sequence[Submission], state: ServerState) -> None:
        """Compute the losses of uploads, except those that will move nothing."""
        epoch = state.epoch + 1  # it only grows
        fresh = [
            each
            for each in batch
            if each.mixture is None  # it says itself where it belongs
            and not is_too_stale(epoch - each.base_epoch, self.settings.rates)
            and not self._is_refused(each, state)
        ]
        if fresh:
            with self.metrics.timed("evaluate"):
                self._compute_losses(fresh, state)

    def _is_refused(self, submission: Submission, state: ServerState) -> bool:
        """Return whether the defence refuses an upload whatever it was trained from, and without a look at its losses.

        That is fetched later; zeros stand for it, as far from any model as can be.
        """
        model = submission.local_model
        upload = Upload(model, submission.base_epoch, base_model=torch.zeros_like(model), time=submission.received)
        _, verdict = self._defence.admit(state, upload, submission.client)
        return not verdict.is_accepted

    def _compute_losses(self, fresh: list[Submission], state: ServerState) -> None:
        try:
            losses = self.evaluate.of_each([submission.local_model for submission in fresh])  # (n, K)
        except Exception as error:  # any error of the model or the loss
            if len(fresh) > 1:  # answer those that cause it, and no others
                for submission in fresh:
                    self._compute_losses([submission], state)
            else:
                self._refuse_for(fresh[0], error, state)
            return
        for submission, submission.losses in zip(fresh, losses, strict=True):
            if not bool(torch.isfinite(submission.losses).all()):
                why = "the model has no finite loss; train with a smaller learning_rate"
                drop(self.store, submission, UnfitError(why))

    def _refuse_for(self, submission: Submission, error: Exception, state: ServerState) -> None:
        """Refuse an upload that cannot be evaluated; if clusters cannot be evaluated either, it is not its fault."""
        try:
            self.evaluate.of_each([state.cluster_models[0]])
        except Exception:
            drop(self.store, submission, unavailable(submission, error))
            return
        logger.info("an upload of %s cannot be evaluated: %s", submission.client_id, error)
        why = f"the loss of the model cannot be computed ({type(error).__name__}); train with a smaller learning_rate"
        drop(self.store, submission, UnfitError(why))


def drop(store: Store, submission: Submission, error: WireError) -> None:
    """Answer with an error, and delete the upload; one of another front end stays until that one can know."""
    store.drop(None if submission.is_offered else submission.upload, submission.base)
    submission.answer.set_exception(error)


def unavailable(submission: Submission, error: Exception) -> WireError:
    """Return the error for a client that may send the same upload again."""
    if not isinstance(error, StoreUnavailable):
        logger.error("an upload of %s could not be applied", submission.client_id, exc_info=error)
    return UnavailableError("the server cannot take the upload now; send it again", retry_after=RETRY_SECONDS)
