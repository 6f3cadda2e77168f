"""FedAsync: one model for everybody, moved a little towards every upload (Xie et al., 2019)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment, ClientView, proxy_free_state
from cdfl.core import Evaluate, Reply


class FedAsync(Algorithm):
    """CDFL's server with a single cluster, which starts from the average of the pre-trained ones."""

    name: ClassVar[str] = "fedasync"
    uses_proxy: ClassVar[bool] = False
    estimates: ClassVar[bool] = False
    settled: ClassVar[Mapping[str, Any]] = {"cluster_step": "towards"}  # along changes it would be FedBuff

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin with the average."""
        return proxy_free_state(cluster_models.mean(dim=0, keepdim=True), num_parameters)

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """There is one cluster, and everybody belongs to it."""
        whole = torch.ones(1, dtype=torch.float64)
        return Assignment(reply.personal_model, reply.epoch, reply.mixture, mixture=whole)
