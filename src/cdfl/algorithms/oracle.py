"""CDFL with the true mixture instead of an estimate: the result of a perfect estimator."""

from typing import Any, ClassVar

from cdfl.algorithms.base import Assignment, ClientView, MixtureFromClient, reads_reply_only
from cdfl.core import Reply


class Oracle(MixtureFromClient):
    """The estimate is the true mixture; everything else is CDFL."""

    name: ClassVar[str] = "oracle"

    @reads_reply_only
    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Send the true mixture with the upload."""
        return Assignment(reply.personal_model, reply.epoch, reply.client, mixture=view.true_mixture)
