"""FedAsync: one model for all, moved a little towards every upload (Xie et al., 2019)."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from cdfl.algorithms.base import Assignment, ClientView, MixtureFromClient, reads_reply_only, without_losses
from cdfl.core import Evaluate, Reply, ServerState, Settings


class FedAsync(MixtureFromClient):
    """A single cluster that starts from the average of the pre-trained ones.

    It always steps towards the upload; a step along the change would make it FedBuff.
    """

    name: ClassVar[str] = "fedasync"
    estimates = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings.replace(cluster_step="towards")

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> ServerState:
        """Begin with the average."""
        return without_losses(cluster_models.mean(dim=0, keepdim=True), num_parameters)

    @reads_reply_only
    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Assign every client to the one cluster."""
        whole = torch.ones(1, dtype=torch.float64)
        return Assignment(reply.personal_model, reply.epoch, reply.client, mixture=whole)
