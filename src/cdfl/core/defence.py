"""The interface of a defence against harmful uploads. The paper trusts every client; so does `NO_DEFENCE`.

A defence is pure: what it remembers is `ServerState.defence_memory` and, for each client, `ClientMemory.defence`. The
journal keeps its `Verdict`, so a recovered server remembers the same.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from cdfl.core.settings import RateSettings
from cdfl.core.state import ACCEPTED, ClientMemory, Evaluate, ServerState, Upload, Verdict
from cdfl.core.update import losses_after


class Limited(NamedTuple):
    """What a defence allows of a step."""

    rates: Tensor  # (K,) beta_mk, or less
    cluster_losses: Tensor  # (K,) after the step; NaN if not evaluated yet
    verdict: Verdict


class Defence(Protocol):
    """Bounds an upload before it is measured; allows, shrinks or refuses its step."""

    @property
    def needs_base(self) -> bool:
        """Whether `upload.base_model` is required, even with `cluster_step="towards"`."""
        ...

    @property
    def counts_deprecated(self) -> bool:
        """Whether an upload older than max_staleness counts as an epoch, as in the paper."""
        ...

    def admit(self, state: ServerState, upload: Upload, client: ClientMemory) -> tuple[Upload, Verdict]:
        """Return the upload, perhaps with a shorter change v - u (`bounded`), and whether it may be measured."""
        ...

    def limit(
        self,
        state: ServerState,
        upload: Upload,
        rates: Tensor,
        client: ClientMemory,
        settings: RateSettings,
        evaluate: Evaluate,
    ) -> Limited:
        """Return the given rates or smaller ones, and the verdict. If it is a refusal, no cluster moves."""
        ...

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Return the server's memory after an accepted upload. Rejected ones leave no trace in it."""
        ...


class NoDefence:
    """No defence: every upload counts."""

    needs_base: ClassVar[bool] = False
    counts_deprecated: ClassVar[bool] = True

    def admit(self, state: ServerState, upload: Upload, client: ClientMemory) -> tuple[Upload, Verdict]:
        """Return the upload unchanged."""
        return upload, ACCEPTED

    def limit(
        self,
        state: ServerState,
        upload: Upload,
        rates: Tensor,
        client: ClientMemory,
        settings: RateSettings,
        evaluate: Evaluate,
    ) -> Limited:
        """Allow the step."""
        return Limited(rates, losses_after(state, rates), Verdict(client=client.defence))

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Remember nothing new."""
        return memory


NO_DEFENCE = NoDefence()


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
