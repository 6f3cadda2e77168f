"""FedSoft-Async, the paper's baseline: the client estimates its own mixture, from all K models."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment, ClientView, proxy_free_state
from cdfl.core import Evaluate, Reply


class FedSoft(Algorithm):
    """Every sample votes for the cluster model that has the smallest loss on it; the votes are the mixture.

    The client votes with the models of its last download on the data it then trains on, as a device would.
    """

    name: ClassVar[str] = "fedsoft"
    uses_proxy: ClassVar[bool] = False
    models_down: ClassVar[str] = "clusters"

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin without a look at the proxy sets."""
        return proxy_free_state(cluster_models, num_parameters)

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Count the votes on the new data."""
        votes = view.losses(state.cluster_models).argmin(dim=1).cpu()
        mixture = torch.bincount(votes, minlength=len(state.cluster_models)).double() / len(votes)
        return Assignment(reply.personal_model, reply.epoch, reply.mixture, mixture=mixture)
