"""CDFL: the server estimates a client's mixture from its upload."""

from typing import Any, ClassVar

from torch import Tensor

from cdfl.algorithms.base import Algorithm, Assignment
from cdfl.core import (
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
    server_update,
)


class CDFL(Algorithm):
    """Algorithm 1 of the paper. The settings choose the estimator and the defence unless they are passed."""

    name: ClassVar[str] = "cdfl"

    def __init__(self, settings: Settings, estimator: Estimator | None = None, defence: Defence | None = None) -> None:
        self.settings = settings
        self.estimator = estimator or estimator_of(settings)
        self.defence = defence or defence_of(settings)

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> ServerState:
        """Begin at epoch 0."""
        return initial_state(cluster_models, evaluate, num_parameters)

    def join(self, state: Any) -> Reply:
        """Answer a new client with the average of the clusters."""
        return join(state, self.settings)

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
            estimator=self.estimator,
            defence=self.defence,
        )

    def cluster_models(self, state: Any) -> Tensor:
        """Return the clusters."""
        models: Tensor = state.cluster_models
        return models
