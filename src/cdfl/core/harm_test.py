"""The harm test: a defence that rejects uploads with a large loss, far from every cluster.

harm = max(1, min_k F(v; D_k) / F(w_k; D_k)) * min_k ||v - w_k||^2. The usual harm is the median over the last `WINDOW`
uploads. Rejected uploads count in it too, so it follows honest clients whose data change all at once. An upload is
rejected if past_harm ** `MEMORY` * harm / usual_harm is above `max_harm`.

A client's past harm is 1 at first and stays between `TRUSTED` and `BLAMED`. Uploads below `BEARABLE` times the usual
harm make it smaller, others larger. One upload with a flipped sign is hard to tell from an honest one; several are not.

Before `WARM_UP` uploads there is no usual harm. Until then, `is_absurd` rejects uploads whose distance from every
cluster is much larger than the norm of a cluster.
`benchmarks/poison.py` measures what the test catches, and how many honest uploads it rejects.
"""

import math
import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cdfl.core.defence import NO_DEFENCE, Defence, Step, take_step
from cdfl.core.settings import Settings
from cdfl.core.state import UNMEASURED, ClientMemory, Evaluate, Measures, ServerState, Upload, Verdict

MOST = sys.float_info.max  # larger numbers cannot be written to JSON
WINDOW = 100  # uploads in the median
WARM_UP = 10  # uploads before there is a usual harm
MEMORY = 0.8  # the exponent of a client's past harm
BEARABLE = 1.2  # an upload below this many times the usual harm lowers its client's past harm
TRUSTED, BLAMED = 0.125, 12.5  # bounds of past harm
ABSURD = 10.0  # a distance of this many times the norm of a cluster is absurd


class Judgement(NamedTuple):
    """What the test found."""

    harm: float
    usual_harm: float | None  # the median over the uploads before this one; None during warm-up
    past_harm: float  # of its client, this upload included
    is_harmful: bool


@dataclass(frozen=True)
class HarmTest:
    """The harm test as a defence. The server remembers recent harms, and for each client its past harm."""

    max_harm: float

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
        """Take the step unless the upload is harmful."""
        step = take_step(state, upload, rates)
        if measures is UNMEASURED:
            return step, Verdict(client=client.defence)
        past = client.defence[0] if client.defence else 1.0
        found = judge(state, measures, past, self.max_harm)
        reason = reason_for(found, past) if found.is_harmful else ""
        return step, Verdict(not found.is_harmful, (found.harm, found.usual_harm), (found.past_harm,), reason)

    def remember(self, memory: Tensor, verdict: Verdict) -> Tensor:
        """Keep the harms of the last uploads, this one included."""
        if not verdict.seen:
            return memory
        return torch.cat([memory, memory.new_tensor([verdict.seen[0]])])[-WINDOW:]


def defence_of(settings: Settings) -> Defence:
    """Return the defence that the settings name."""
    return NO_DEFENCE if settings.max_harm is None else HarmTest(settings.max_harm)


def judge(state: ServerState, measures: Measures, past_harm: float, max_harm: float) -> Judgement:
    """Decide whether an upload is harmful; during warm-up, whether it is absurd."""
    harm, usual_harm = harm_of(measures, state.cluster_losses), usual_harm_of(state.defence_memory)
    if usual_harm is None:
        too_much = is_absurd(state, measures)
    else:
        too_much = _times_usual(past_harm, harm, usual_harm) > max_harm
    return Judgement(harm, usual_harm, past_harm_after(past_harm, harm, usual_harm), too_much)


def reason_for(found: Judgement, past_harm: float) -> str:
    """Say why an upload was rejected, for its client."""
    if found.usual_harm is None:
        why = "it is far from every cluster, compared with their size and its losses"
    else:
        why = f"it would do {found.harm / found.usual_harm:.3g} times the usual harm, more than the server allows"
        if past_harm > 1:
            why += ". The limit is lower for you because earlier uploads were harmful; usual uploads raise it again"
    return (
        f"the upload is answered, but it moved no cluster: {why}. This may happen just after the data have changed; "
        "if it goes on, check data and labels, train with a smaller learning_rate, or add less noise for privacy"
    )


def past_harm_after(before: float, harm: float | None, usual_harm: float | None) -> float:
    """Return a client's past harm after an upload.

    >>> past_harm_after(1.0, harm=6.0, usual_harm=2.0)                     # 3 / 1.2
    2.5
    >>> round(past_harm_after(2.0, harm=6.0, usual_harm=2.0), 4)           # 2 ** .8 * 3 / 1.2
    4.3528
    >>> past_harm_after(2.0, harm=None, usual_harm=None)                   # not measured, or warm-up
    2.0
    """
    if harm is None or usual_harm is None:
        return before
    return min(BLAMED, max(TRUSTED, _times_usual(before, harm, usual_harm) / BEARABLE))


def _times_usual(past_harm: float, harm: float, usual_harm: float) -> float:
    return math.pow(past_harm, MEMORY) * (harm / usual_harm)


def harm_of(measures: Measures, cluster_losses: Tensor) -> float:
    """Return the harm: how much worse than the clusters, times the squared distance; 0 if the upload equals a cluster.

    >>> measures = Measures(torch.tensor([2.0, 0.9]), torch.tensor([1.0, 0.6]), torch.tensor([5.0, 4.0]))
    >>> round(harm_of(measures, torch.tensor([1.0, 0.3])), 4)              # min(2, 3) * min(5, 4) ** 2
    32.0
    """
    distance = float(measures.distances.min())
    return min(MOST, times_worse(measures, cluster_losses) * distance * distance)


def times_worse(measures: Measures, cluster_losses: Tensor) -> float:
    """Return min_k F(v; D_k) / F(w_k; D_k), at least 1.

    Returns 1 if a loss is not above 0 (some likelihoods): then only the distance decides.
    """
    if not bool((cluster_losses > 0).all()):
        return 1.0
    return min(MOST, max(1.0, float((measures.losses / cluster_losses).min())))


def usual_harm_of(recent_harms: Tensor) -> float | None:
    """Return the median harm of the last uploads; None before `WARM_UP` uploads, or if it is 0.

    >>> usual_harm_of(torch.arange(WARM_UP)), usual_harm_of(torch.arange(WARM_UP - 1))
    (4.0, None)
    """
    return float(recent_harms.median()) or None if len(recent_harms) >= WARM_UP else None


def is_absurd(state: ServerState, measures: Measures) -> bool:
    """Return whether distance times `times_worse` (at most `ABSURD`) exceeds `ABSURD` * max_k ||w_k||."""
    longest = float(state.cluster_models[:, : state.num_parameters].norm(dim=1).max())
    worse = min(ABSURD, times_worse(measures, state.cluster_losses))  # capped: losses may be near 0
    return 0 < ABSURD * longest < worse * float(measures.distances.min())
