"""Replay recorded decisions through `server_update`."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cdfl.core.defence import Defence, Step, take_step
from cdfl.core.estimate import Estimator
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

    def bound(self, state: ServerState, upload: Upload, client: ClientMemory) -> Upload:
        """Bound the upload again; bounding is a pure function."""
        return self.defence.bound(state, upload, client)

    def step(
        self,
        state: ServerState,
        upload: Upload,
        measures: Measures,
        rates: Tensor,
        client: ClientMemory,
        evaluate: Evaluate,
    ) -> tuple[Step, Verdict]:
        """Move the clusters by the recorded rates."""
        step = take_step(state, upload, self.rates)
        return step._replace(cluster_losses=self.cluster_losses), self.verdict

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Return the defence's memory after the recorded verdict."""
        return self.defence.remember(memory, verdict)
