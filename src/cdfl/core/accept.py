"""Would an upload do harm? A test on what the server measures of it anyway.

Addition: the paper trusts every client. Here an upload's harm is how much worse its model is than the clusters, times
the square of how far it would drag them: the smallest F(v; D_k) / F(w_k; D_k), though never less than 1, times the
smallest ||v - w_k||^2 (near a minimum, losses rise with the square of the distance; of the powers tried, this one told
poison from honest uploads best). A model that is near one cluster harms little, one that is worse than every cluster on
every proxy set, or of absurd size, much. Being better than the clusters excuses no distance: where all samples are on
the right side of a cross entropy, a model of any size has a loss of 0.

How much is much is learned: `max_harm` times the median of the last uploads. Every upload counts in that median, also
one that is refused. So fewer than half of the uploads cannot move it far, and where honest clients all change at once
it follows them.

One look does not tell an update whose sign is flipped from an honest one: it is as long, and its model hardly worse.
But who flips one flips the next, while an honest client does more harm than usual now and less then. So what a client
did before counts, too, though less and less: its past harm, 1 for a newcomer, to the power of `MEMORY`, is multiplied
with the harm of an upload. Uploads that do less than `BEARABLE` times the usual harm make it smaller, others larger.
There are ends to it: nobody can save up for an attack (`TRUSTED`), and whose data or trainings have gone wrong once is
back after a few uploads (`BLAMED`). `benchmarks/poison.py` measures what the test catches, and whom it wrongs.

Until `WARM_UP` uploads have come nothing is usual, and nothing the server has says what honest ones will be like: not
how far the clusters are apart (pre-training may leave them together), nor how good they are (it may leave losses near
0). All it knows is how long its models are. A training that begins with a trained model hardly changes it by more than
its own length. So `is_absurd` refuses what is farther away than that and ten times as bad, or ten times as far however
good: a model scaled by a million, or with its sign flipped. Attacks that look like a training come through until
something is usual, which is why `WARM_UP` is no larger than a steady median needs. Where models begin untrained, with
weights of almost 0, honest trainings may go farther, too: the first `WARM_UP` uploads are refused then, but they count,
and after them that is usual.
"""

import math
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from cdfl.core.state import Measures, ServerState

MOST = sys.float_info.max  # numbers beyond it cannot be written down everywhere
WINDOW = 100  # uploads that say what is usual
WARM_UP = 10  # uploads before anything is usual
MEMORY = 0.8  # the power to which the past of a client still counts
BEARABLE = 1.2  # times the usual harm: who does less gains trust
TRUSTED, BLAMED = 0.125, 12.5  # the least and the most that a past can come to
ABSURD = 10.0  # times as far as a cluster is long: refused even where nothing is usual yet


class Verdict(NamedTuple):
    """What the test found."""

    harm: float
    usual_harm: float | None  # the median of the uploads before this one; None: nothing is usual yet
    past_harm: float  # of its client, this upload included
    is_harmful: bool


def judge(state: ServerState, measures: Measures, past_harm: float, max_harm: float) -> Verdict:
    """Would an upload do more than `max_harm` times the usual harm, with the past of its client?

    Where nothing is usual yet: is it absurd?
    """
    harm, usual_harm = harm_of(measures, state.cluster_losses), usual_harm_of(state.recent_harms)
    if usual_harm is None:
        too_much = is_absurd(state, measures)
    else:
        too_much = _times_usual(past_harm, harm, usual_harm) > max_harm
    return Verdict(harm, usual_harm, past_harm_after(past_harm, harm, usual_harm), too_much)


def past_harm_after(before: float, harm: float | None, usual_harm: float | None) -> float:
    """What is remembered of a client after an upload, from what was remembered before it.

    >>> past_harm_after(1.0, harm=6.0, usual_harm=2.0)                     # 3 / 1.2
    2.5
    >>> round(past_harm_after(2.0, harm=6.0, usual_harm=2.0), 4)           # 2 ** .8 * 3 / 1.2
    4.3528
    >>> past_harm_after(2.0, harm=None, usual_harm=None)                   # not looked at, or nothing was usual
    2.0
    """
    if harm is None or usual_harm is None:
        return before
    return min(BLAMED, max(TRUSTED, _times_usual(before, harm, usual_harm) / BEARABLE))


def _times_usual(past_harm: float, harm: float, usual_harm: float) -> float:
    return math.pow(past_harm, MEMORY) * (harm / usual_harm)


def harm_of(measures: Measures, cluster_losses: Tensor) -> float:
    """How much worse than the clusters, times how far from them, squared; 0 for an upload that equals a cluster.

    >>> measures = Measures(torch.tensor([2.0, 0.9]), torch.tensor([1.0, 0.6]), torch.tensor([5.0, 4.0]))
    >>> round(harm_of(measures, torch.tensor([1.0, 0.3])), 4)              # min(2, 3) * min(5, 4) ** 2
    32.0
    """
    distance = float(measures.distances.min())
    return min(MOST, times_worse(measures, cluster_losses) * distance * distance)


def times_worse(measures: Measures, cluster_losses: Tensor) -> float:
    """How many times as bad as the clusters an upload is where it is best; 1 if it is no worse than one of them.

    Losses that are not above 0 (some likelihoods) have no ratio; then the distance decides alone.
    """
    if not bool((cluster_losses > 0).all()):
        return 1.0
    return min(MOST, max(1.0, float((measures.losses / cluster_losses).min())))


def usual_harm_of(recent_harms: Tensor) -> float | None:
    """The median of what the last uploads did; None while they are fewer than `WARM_UP`, or if it is 0.

    >>> usual_harm_of(torch.arange(WARM_UP)), usual_harm_of(torch.arange(WARM_UP - 1))
    (4.0, None)
    """
    return float(recent_harms.median()) or None if len(recent_harms) >= WARM_UP else None


def is_absurd(state: ServerState, measures: Measures) -> bool:
    """Is an upload `ABSURD` times as far away as the clusters are long, or that much worse and farther than once?

    Between the two, one makes up for the other. Clusters of length 0 cannot tell.
    """
    longest = float(state.cluster_models[:, : state.num_parameters].norm(dim=1).max())
    worse = min(ABSURD, times_worse(measures, state.cluster_losses))  # more says no more: losses may be near 0
    return 0 < ABSURD * longest < worse * float(measures.distances.min())


def remember(recent_harms: Tensor, harm: float) -> Tensor:
    """The harms of the last uploads, this one included."""
    return torch.cat([recent_harms, recent_harms.new_tensor([harm])])[-WINDOW:]
