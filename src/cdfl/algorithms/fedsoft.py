"""FedSoft-Async, the paper's baseline: the client estimates its mixture from all K models."""

from typing import Any, ClassVar

import torch

from cdfl.algorithms.base import Assignment, ClientView, MixtureFromClient
from cdfl.core import Reply, personalize


class FedSoft(MixtureFromClient):
    """Every sample votes for the cluster model with the smallest loss on it; the votes are the mixture.

    Like a real device, the client uses the models of its last download and the data that it trains on next. It trains
    from the average of those models, weighted by its new votes.
    """

    name: ClassVar[str] = "fedsoft"
    models_down = "clusters"

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Count the votes on the new data."""
        votes = view.losses(state.cluster_models).argmin(dim=1).cpu()
        mixture = torch.bincount(votes, minlength=len(state.cluster_models)).double() / len(votes)
        start = personalize(state.cluster_models, mixture)
        return Assignment(start, reply.epoch, reply.client, mixture=mixture)
