"""Would an upload do harm? A test on what the server measures of it anyway.

Addition: the paper trusts every client. Here an upload's harm is how much worse its model is than the clusters, times
the square of how far it would drag them: the smallest F(v; D_k) / F(w_k; D_k) times the smallest ||v - w_k||^2 (near a
minimum, losses rise with the square of the distance; of the powers tried, this one told poison from honest uploads
best). A model that is good on one proxy set, or near one cluster, harms little; one that is worse than every cluster on
every proxy set, or of absurd size, harms much. How much is much is learned: `max_harm` times the median of the last
uploads. `benchmarks/poison.py` measures what it catches, and whom it wrongs.

Every upload counts in that median, refused ones too. So fewer than half of the uploads cannot move it far, and where
honest clients all change at once it follows them. Before the first upload it is guessed from how far the clusters are
apart.
"""

import sys

import torch
from torch import Tensor

from cdfl.core.estimate import Measures
from cdfl.core.state import ServerState

MOST = sys.float_info.max  # numbers beyond it cannot be written down everywhere
WINDOW = 100  # uploads that say what is usual
START = 5.0  # before any upload: what goes so many times as far as a cluster's nearest neighbour is usual


def harm_of(measures: Measures, cluster_losses: Tensor) -> float:
    """How much worse than the clusters, times how far from them, squared; 0 for an upload that equals a cluster.

    Losses that are not above 0 (some likelihoods) have no ratio; then the distance decides alone.

    >>> measures = Measures(torch.tensor([2.0, 0.9]), torch.tensor([1.0, 0.6]), torch.tensor([5.0, 4.0]))
    >>> round(harm_of(measures, torch.tensor([1.0, 0.3])), 4)              # min(2, 3) * min(5, 4) ** 2
    32.0
    """
    worse = (measures.losses / cluster_losses).min() if bool((cluster_losses > 0).all()) else torch.tensor(1.0)
    harm = float(worse * measures.distances.min() ** 2)
    return min(harm, MOST)


def usual_harms(state: ServerState) -> Tensor:
    """What the last uploads did; before there are any, a generous guess from how far the clusters are apart (K,)."""
    if len(state.recent_harms) > 0 or state.num_clusters == 1:
        return state.recent_harms
    trained = list(state.cluster_models[:, : state.num_parameters])
    nearest = [min(float((one - other).norm()) for other in trained if other is not one) for one in trained]
    return (START * torch.tensor(nearest, dtype=torch.float64)) ** 2


def is_harmful(harm: float, usual: Tensor, max_harm: float) -> bool:
    """Does an upload do more than `max_harm` times the usual harm? Where nothing is usual yet, none does.

    >>> usual = torch.tensor([0.5, 1.0, 7.0])
    >>> is_harmful(1.9, usual, max_harm=2), is_harmful(2.1, usual, max_harm=2)
    (False, True)
    """
    return len(usual) > 0 and 0 < float(usual.median()) * max_harm < harm


def remember(usual: Tensor, harm: float) -> Tensor:
    """The harms of the last uploads, this one included."""
    return torch.cat([usual, usual.new_tensor([harm])])[-WINDOW:]
