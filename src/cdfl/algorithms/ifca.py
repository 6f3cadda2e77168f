"""Asynchronous IFCA: every client belongs to the one cluster whose model fits its data best."""

from typing import Any, ClassVar

import torch

from cdfl.algorithms.base import Assignment, ClientView, MixtureFromClient
from cdfl.core import Reply


class IFCA(MixtureFromClient):
    """A client trains from its best cluster model and moves only that cluster.

    Ghosh et al., "An Efficient Framework for Clustered Federated Learning", 2020, with uploads one at a time.
    """

    name: ClassVar[str] = "ifca"
    models_down = "clusters"

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Choose the cluster whose model has the smallest mean loss on the new data."""
        best = int(view.losses(state.cluster_models).mean(dim=0).argmin())
        hard = torch.zeros(len(state.cluster_models), dtype=torch.float64)
        hard[best] = 1.0
        return Assignment(state.cluster_models[best].clone(), reply.epoch, reply.client, mixture=hard)
