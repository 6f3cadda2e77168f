"""CDFL: the server estimates a client's mixture from its upload."""

from typing import Any, ClassVar

from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment, ClientView, reads_reply_only, without_losses
from cdfl.core import (
    GIVEN,
    NO_DEFENCE,
    Defence,
    Estimator,
    Evaluate,
    Reply,
    ServerState,
    Settings,
    Upload,
    defence_of,
    estimator_of,
    initial_state,
    join,
    personalize,
    reply_weights,
    server_update,
)


class CDFL(Algorithm):
    """Algorithm 1 of the paper. The settings choose the estimator and the defence unless they are passed."""

    name: ClassVar[str] = "cdfl"

    def __init__(self, settings: Settings, estimator: Estimator | None = None, defence: Defence | None = None) -> None:
        self.settings = settings
        self.estimator = estimator or estimator_of(settings)
        self.defence = defence or defence_of(settings)
        if settings.replies.reply == "experts":
            self.models_down = "experts"
            if settings.replies.send_mixture and self.defence is NO_DEFENCE:
                self.uses_proxy = False  # the mixture comes with the upload

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> ServerState:
        """Begin at epoch 0."""
        if not self.uses_proxy:
            return without_losses(cluster_models, num_parameters)
        return initial_state(cluster_models, evaluate, num_parameters)

    def join(self, state: Any) -> Reply:
        """Answer a new client with the average of the clusters."""
        return join(state, self.settings)

    @reads_reply_only
    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Train from the reply; with experts, from their average weighted by the mixture that the router sees now."""
        if view.experts is None or view.mixture is None:
            return super().assign(state, reply, view)
        does_send = self.settings.replies.send_mixture
        mixture = view.mixture() if does_send else reply.mixture
        start = personalize(view.experts, reply_weights(mixture, self.settings.rates))
        return Assignment(start, reply.epoch, reply.client, mixture=mixture if does_send else None)

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Take one upload and answer it."""
        return server_update(
            state,
            upload,
            self.settings,
            evaluate,
            assignment.client,
            estimator=self.estimator if upload.mixture is None else GIVEN,
            defence=self.defence,
        )

    def cluster_models(self, state: Any) -> Tensor:
        """Return the clusters."""
        models: Tensor = state.cluster_models
        return models
