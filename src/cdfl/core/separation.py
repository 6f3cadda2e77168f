"""Can clusters be told apart? Compare their models with each other on every proxy set. Not in the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

MOST_NAMED = 3  # pairs in a sentence
FAR = 0.05  # a lower loss by less than this share is no sign of an easier cluster
SURE = 2.0  # standard errors by which the models of two clusters must be better on their own proxy sets


@dataclass(frozen=True, eq=False)
class Separation:
    """How the model of each cluster (row) does on the proxy set of each (column)."""

    losses: Tensor  # (K, K) float64
    leads: Tensor  # (K, K) by how much two models are better on their own sets than exchanged, in standard errors

    def sentences(self, names: Sequence[str], *, relative: bool = False) -> list[str]:
        """Return one sentence if clusters cannot be told apart, and one if some are taken for easier ones.

        `relative` says that the estimate divides losses by each cluster's running mean.
        """
        alike, mistaken, found = self.alike(), self.mistaken(relative=relative), []
        if alike:
            pairs = ", ".join(f"{names[one]!r} and {names[other]!r}" for one, other in alike[:MOST_NAMED])
            more = f", and {len(alike) - MOST_NAMED} more pairs" if len(alike) > MOST_NAMED else ""
            (one, other), *_ = alike
            found.append(
                f"these clusters cannot be told apart: {pairs}{more} (on {names[one]!r} its own model has loss "
                f"{self._loss(one, one)}, the other {self._loss(other, one)}); estimated mixtures will confuse them: "
                "join them, give more data, or pre-train longer"
            )
        if mistaken:
            (own, other), *_ = mistaken
            wrong = ", ".join(f"{names[cluster]!r} for {names[taken]!r}" for cluster, taken in mistaken[:MOST_NAMED])
            remedy = (
                "give more data, or pre-train longer"
                if relative
                else "use settings={'measures': 'relative'} or --set measures=relative"
            )
            found.append(
                f"some clusters are harder than others, and will be mistaken: {wrong} (the model of {names[own]!r} has "
                f"loss {self._loss(own, own)} on its own proxy set and {self._loss(own, other)} there): {remedy}"
            )
        return found

    def alike(self) -> list[tuple[int, int]]:
        """Return the pairs of clusters whose models could be exchanged.

        A model that is better on both proxy sets is a better model; it tells nothing apart.
        """
        pairs = combinations(range(len(self.losses)), 2)
        return [(one, other) for one, other in pairs if self.leads[one, other] < SURE]

    def mistaken(self, *, relative: bool = False) -> list[tuple[int, int]]:
        """Return the clusters whose model has a clearly lower loss on the proxy set of another, and that other.

        An upload of such a cluster looks as if its data were of the other.
        """
        losses = self.losses / self.losses.mean(dim=0) if relative else self.losses
        own = losses.diagonal()
        return [
            (cluster, int(row.argmin()))
            for cluster, row in enumerate(losses)
            if own[cluster] - row.min() > FAR * own[cluster].abs()
        ]

    def _loss(self, model: int, place: int) -> str:
        return f"{float(self.losses[model, place]):.3g}"


def separation(sample_losses: Sequence[Tensor]) -> Separation:
    """Compare models by their losses on every sample of each set: K tensors (K models, n samples).

    >>> same = torch.tensor([[1.0, 2.0, 3.0], [1.1, 2.0, 2.9]])
    >>> separation([same, same]).sentences(["a", "b"])[0][:48]
    "these clusters cannot be told apart: 'a' and 'b'"
    """
    losses, gaps, errors = [], [], []  # a column (K,) for each set
    for place, own in enumerate(each.double().cpu() for each in sample_losses):
        difference = own - own[place]  # (K, n)
        losses.append(own.mean(dim=1))
        gaps.append(difference.mean(dim=1))
        errors.append(difference.std(dim=1) / own.shape[1] ** 0.5 if own.shape[1] > 1 else torch.zeros(len(own)))
    gap, error = torch.stack(gaps, dim=1), torch.stack(errors, dim=1)
    leads = (gap + gap.T) / (error.square() + error.T.square()).sqrt().clamp_min(1e-12)
    return Separation(torch.stack(losses, dim=1), leads)
