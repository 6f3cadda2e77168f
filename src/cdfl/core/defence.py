"""The interface of a defence against harmful uploads. The paper trusts every client; so does `NO_DEFENCE`.

A defence is pure: what it remembers is `ServerState.defence_memory` and, for each client, `ClientMemory.defence`. The
journal keeps its `Verdict`, so a recovered server remembers the same.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cdfl.core.state import ClientMemory, Evaluate, Measures, ServerState, Upload, Verdict
from cdfl.core.update import update_clusters


class Step(NamedTuple):
    """The clusters after a step."""

    cluster_models: Tensor  # (K, P)
    rates: Tensor  # (K,) by which they moved
    cluster_losses: Tensor  # (K,) NaN if not evaluated yet


class Defence(Protocol):
    """Bounds an upload before the step, and takes, shrinks or refuses the step."""

    def bound(self, state: ServerState, upload: Upload, client: ClientMemory) -> Upload:
        """Return the upload with its change bounded, before it is measured; drop `losses` if the model changes."""
        ...

    def step(
        self,
        state: ServerState,
        upload: Upload,
        measures: Measures,
        rates: Tensor,
        client: ClientMemory,
        evaluate: Evaluate,
    ) -> tuple[Step, Verdict]:
        """Return `take_step` at `rates` or smaller ones, and the verdict. A rejected step is dropped."""
        ...

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Return the server's memory after an upload; also called for rejected ones."""
        ...


class NoDefence:
    """No defence: every upload counts."""

    def bound(self, state: ServerState, upload: Upload, client: ClientMemory) -> Upload:
        """Return the upload unchanged."""
        return upload

    def step(
        self,
        state: ServerState,
        upload: Upload,
        measures: Measures,
        rates: Tensor,
        client: ClientMemory,
        evaluate: Evaluate,
    ) -> tuple[Step, Verdict]:
        """Take the step."""
        return take_step(state, upload, rates), Verdict(client=client.defence)

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Remember nothing new."""
        return memory


NO_DEFENCE = NoDefence()


def take_step(state: ServerState, upload: Upload, rates: Tensor) -> Step:
    """Move the clusters towards v, as in the paper, or along v - u if the upload has its base model."""
    models = update_clusters(state.cluster_models, upload.local_model, rates, upload.base_model, state.num_parameters)
    return Step(models, rates, torch.where(rates == 0, state.cluster_losses, torch.nan))
