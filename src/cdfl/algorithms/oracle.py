"""CDFL with the true mixture instead of an estimate: what a perfect estimator would give."""

from typing import Any, ClassVar

from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment, ClientView, proxy_free_state
from cdfl.core import Evaluate, Reply


class Oracle(Algorithm):
    """The estimate is the truth; everything else is CDFL."""

    name: ClassVar[str] = "oracle"
    uses_proxy: ClassVar[bool] = False

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin without a look at the proxy sets."""
        return proxy_free_state(cluster_models, num_parameters)

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Send the true mixture along."""
        return Assignment(reply.personal_model, reply.epoch, reply.mixture, mixture=view.true_mixture)
