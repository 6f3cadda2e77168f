"""Repeat what was decided about an upload: the journal is replayed through `server_update`, too."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cdfl.core.defence import Defence, Step, take_step
from cdfl.core.estimate import Estimator
from cdfl.core.state import UNMEASURED, ClientMemory, Evaluate, Measures, ServerState, Upload, Verdict


@dataclass(frozen=True, eq=False)
class Recorded:
    """An estimator and a defence that answer as they once did. No proxy set is needed, and no bit depends on a machine.

    Pass it as both: `server_update(state, upload, settings, evaluate, client, estimator=it, defence=it)`. Memories are
    made of the recorded measures and verdict by the estimator and the defence that were in force.
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
        """Begin as the estimator did."""
        return self.estimator.begin(num_clusters)

    def __call__(
        self, upload: Upload, measures: Measures, memory: Tensor, epoch: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the recorded mixture, and the memory that its measures made."""
        if self.measures is UNMEASURED:
            return self.mixture, memory
        return self.mixture, self.estimator(upload, self.measures, memory, epoch)[1]

    def bound(self, state: ServerState, upload: Upload, client: ClientMemory) -> Upload:
        """Bound the upload again: a pure function of what was remembered."""
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
        """Remember the verdict as the defence did."""
        return self.defence.remember(memory, verdict)
