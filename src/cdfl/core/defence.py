"""The interface of a defence against harmful uploads. The paper trusts every client; so does `NO_DEFENCE`.

A defence is pure: what it remembers is `ServerState.defence_memory` and, for each client, `ClientMemory.defence`. The
journal keeps its `Verdict`, so a recovered server remembers the same.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from cdfl.core.settings import RateSettings
from cdfl.core.state import ClientMemory, Evaluate, Measures, ServerState, Upload, Verdict
from cdfl.core.update import update_clusters


class Decision(NamedTuple):
    """The result of Algorithm 2 for one upload."""

    measures: Measures  # l, d1, d2
    mixture: Tensor  # (K,) alpha_hat
    estimator_memory: Tensor  # after this upload
    rates: Tensor  # (K,) beta_mk
    cluster_epochs: Tensor  # (K,) e_k after this upload


class Step(NamedTuple):
    """The clusters after a step."""

    cluster_models: Tensor  # (K, P)
    rates: Tensor  # (K,) by which they moved
    cluster_losses: Tensor  # (K,) NaN if not evaluated yet


class Defence(Protocol):
    """Bounds an upload before the step, and takes, shrinks or refuses the step."""

    @property
    def needs_base(self) -> bool:
        """Whether it must be passed `base_model`, also if clusters move towards uploads."""
        ...

    @property
    def counts_deprecated(self) -> bool:
        """Whether an upload older than max_staleness counts as an epoch, as in the paper."""
        ...

    def admit(self, state: ServerState, upload: Upload, client: ClientMemory) -> Upload | Verdict:
        """Return the upload with its change `bounded`, or refuse it before it is measured."""
        ...

    def step(
        self,
        state: ServerState,
        upload: Upload,
        decision: Decision,
        client: ClientMemory,
        settings: RateSettings,
        evaluate: Evaluate,
    ) -> tuple[Step, Verdict]:
        """Return `take_step` at the decision's rates or smaller ones, and the verdict. A rejected step is dropped."""
        ...

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Return the server's memory after an accepted upload. Rejected ones leave no trace in it."""
        ...


class NoDefence:
    """No defence: every upload counts."""

    needs_base: ClassVar[bool] = False
    counts_deprecated: ClassVar[bool] = True

    def admit(self, state: ServerState, upload: Upload, client: ClientMemory) -> Upload | Verdict:
        """Return the upload unchanged."""
        return upload

    def step(
        self,
        state: ServerState,
        upload: Upload,
        decision: Decision,
        client: ClientMemory,
        settings: RateSettings,
        evaluate: Evaluate,
    ) -> tuple[Step, Verdict]:
        """Take the step."""
        return take_step(state, upload, decision.rates, settings), Verdict(client=client.defence)

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Remember nothing new."""
        return memory


NO_DEFENCE = NoDefence()


def take_step(state: ServerState, upload: Upload, rates: Tensor, settings: RateSettings) -> Step:
    """Move the clusters by `rates`: towards v, as in the paper, or along v - u."""
    base_model = upload.base_model if settings.cluster_step == "along" else None
    models = update_clusters(state.cluster_models, upload.local_model, rates, base_model, state.num_parameters)
    return Step(models, rates, torch.where(rates == 0, state.cluster_losses, torch.nan))


def bounded(upload: Upload, num_parameters: int | None, bounds: Sequence[float]) -> Upload:
    """Return the upload with its changes multiplied by `bounds`: that of the parameters, that of the statistics."""
    if upload.base_model is None or all(factor == 1 for factor in bounds):
        return upload
    base_model = upload.base_model.to(upload.local_model)
    change = upload.local_model - base_model
    count = len(change) if num_parameters is None else num_parameters
    change[:count] *= bounds[0]
    change[count:] *= bounds[1]
    return upload.replace(local_model=base_model + change, losses=None, bounds=(bounds[0], bounds[1]))
