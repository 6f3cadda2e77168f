"""CDFL with the true mixture instead of an estimate: what a perfect estimator would give."""

from typing import Any, ClassVar

from cdfl.algorithms.base import Assignment, ClientView, MixtureFromClient
from cdfl.core import Reply


class Oracle(MixtureFromClient):
    """The estimate is the truth; everything else is CDFL."""

    name: ClassVar[str] = "oracle"

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Send the true mixture along."""
        return Assignment(reply.personal_model, reply.epoch, reply.client, mixture=view.true_mixture)
