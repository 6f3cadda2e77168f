"""Evaluate uploads on the proxy sets. This depends on the upload only, so it needs neither lock nor order."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cdfl.core import Defence, Evaluate, Guard, ServerState, Settings, Upload, is_too_stale
from cdfl.core.guard import tried_on_base
from cdfl.core.proxy_sets import repeated
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
    """What an engine evaluates with, in the thread that evaluates uploads and in the one that applies them.

    With `trial` and `early_trial` the guard tries steps on parts of the proxy sets, in its turn and before.
    """

    uploads: Evaluator
    clusters: Evaluate
    early_trial: Evaluator | None = None
    trial: Evaluate | None = None


class Evaluation:
    """Computes the losses of uploads, and refuses those that cannot be evaluated."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        defence: Defence,
        evaluate: Evaluator,
        metrics: Metrics,
        trial: Evaluator | None = None,
    ) -> None:
        self.store, self.settings, self.metrics = store, settings, metrics
        self.evaluate, self.trial = evaluate, trial
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

    def try_steps(self, batch: Sequence[Submission], num_parameters: int) -> None:
        """Try the steps of uploads on the models they were trained from, for the guard: its turn is then shorter."""
        if self.trial is None or not isinstance(self._defence, Guard):
            return
        for submission in batch:
            is_evaluated = submission.losses is not None or submission.mixture is not None
            if is_evaluated and submission.base_model is not None and not submission.answer.done():
                with self.metrics.timed("evaluate"), suppress(Exception):  # the guard tries again, and reports errors
                    models = tried_on_base(as_upload(submission), num_parameters)
                    submission.tried = self.trial.of_each(list(models))

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


class Foreseen:
    """An `Evaluate` that knows the losses (n, K) of some models (n, P) already."""

    def __init__(self, evaluate: Evaluate, models: Tensor, losses: Tensor) -> None:
        self.evaluate, self.models, self.losses = evaluate, models, losses

    def __call__(self, models: Tensor, clusters: Tensor) -> Tensor:
        """Return the loss of each model (n, P) on the set of the cluster beside it (n,)."""
        found: list[Tensor] = []
        for model, count in repeated(models):
            own = clusters[sum(map(len, found)) :][:count]
            places = [place for place, known in enumerate(self.models) if torch.equal(known, model)]
            found.append(self.losses[places[0], own] if places else self.evaluate(model.expand(count, -1), own).cpu())
        return torch.cat([losses.double() for losses in found])


def as_upload(submission: Submission) -> Upload:
    """Return what the core sees of an upload."""
    return Upload(
        submission.local_model,
        submission.base_epoch,
        submission.client_id,
        submission.losses,
        submission.mixture,
        base_model=submission.base_model,
        time=submission.received,
    )


def drop(store: Store, submission: Submission, error: WireError) -> None:
    """Answer with an error, and delete the upload; one of another front end stays until that one can know."""
    store.drop(None if submission.is_offered else submission.upload, submission.base)
    submission.answer.set_exception(error)


def unavailable(submission: Submission, error: Exception) -> WireError:
    """Return the error for a client that may send the same upload again."""
    if not isinstance(error, StoreUnavailable):
        logger.error("an upload of %s could not be applied", submission.client_id, exc_info=error)
    return UnavailableError("the server cannot take the upload now; send it again", retry_after=RETRY_SECONDS)
