"""Replay recorded decisions through `server_update`."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cdfl.core.defence import Defence, Limited, bounded
from cdfl.core.estimate import Estimator
from cdfl.core.settings import RateSettings
from cdfl.core.state import UNMEASURED, ClientMemory, Evaluate, Measures, ServerState, Upload, Verdict


@dataclass(frozen=True, eq=False)
class Replay:
    """An estimator and a defence that repeat a recorded decision, without proxy sets and with the same bits everywhere.

    Pass it as both: `server_update(state, upload, settings, evaluate, client, estimator=it, defence=it)`. The original
    estimator and defence update their memories from the recorded measures and verdict.
    """

    mixture: Tensor  # (K,)
    rates: Tensor  # (K,)
    cluster_losses: Tensor  # (K,) after the upload
    measures: Measures
    verdict: Verdict
    estimator: Estimator
    defence: Defence
    needs_measures: ClassVar[bool] = False

    def begin(self, num_clusters: int) -> Tensor:
        """Return the estimator's first memory."""
        return self.estimator.begin(num_clusters)

    def __call__(
        self, upload: Upload, measures: Measures, memory: Tensor, epoch: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the recorded mixture, and the memory after the recorded measures."""
        if self.measures is UNMEASURED:
            return self.mixture, memory
        return self.mixture, self.estimator(upload, self.measures, memory, epoch)[1]

    @property
    def needs_base(self) -> bool:
        """Whether the original defence needs it."""
        return self.defence.needs_base

    @property
    def counts_deprecated(self) -> bool:
        """Whether the original defence counts them."""
        return self.defence.counts_deprecated

    def admit(self, state: ServerState, upload: Upload, client: ClientMemory) -> tuple[Upload, Verdict]:
        """Bound the upload by the recorded factors, or refuse it again."""
        return bounded(upload, state.num_parameters, self.verdict.bounds), self.verdict

    def limit(
        self,
        state: ServerState,
        upload: Upload,
        rates: Tensor,
        client: ClientMemory,
        settings: RateSettings,
        evaluate: Evaluate,
    ) -> Limited:
        """Allow the recorded rates."""
        return Limited(self.rates, self.cluster_losses, self.verdict)

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Return the defence's memory after the recorded verdict."""
        return self.defence.remember(memory, verdict)
