"""IFCA made asynchronous: every client belongs to one cluster, the one whose model fits its data best."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment, ClientView, proxy_free_state
from cdfl.core import Evaluate, Reply


class IFCA(Algorithm):
    """A client trains from its best cluster model and moves that cluster alone.

    Ghosh et al., "An Efficient Framework for Clustered Federated Learning", 2020, with uploads one at a time.
    """

    name: ClassVar[str] = "ifca"
    uses_proxy: ClassVar[bool] = False
    models_down: ClassVar[str] = "clusters"

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin without a look at the proxy sets."""
        return proxy_free_state(cluster_models, num_parameters)

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Choose the cluster whose model has the smallest mean loss on the new data."""
        best = int(view.losses(state.cluster_models).mean(dim=0).argmin())
        hard = torch.zeros(len(state.cluster_models), dtype=torch.float64)
        hard[best] = 1.0
        return Assignment(state.cluster_models[best].clone(), reply.epoch, reply.mixture, mixture=hard)
