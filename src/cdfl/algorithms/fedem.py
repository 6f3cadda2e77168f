"""FedEM, asynchronous: every client is a mixture of K shared components (Marfoq et al., 2021)."""

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cdfl.algorithms.base import Algorithm, Assignment, ClientView
from cdfl.core import Evaluate, Reply, Upload, is_too_stale, staleness_factor
from cdfl.core.experts import mixture_of


class MixtureNetwork(nn.Module):
    """K components and a client's mixture as one network; its outputs are the log-probabilities of the mixture.

    The gradient of its cross-entropy is that of FedEM's M-step: each component's, weighted by how likely it is to have
    made the sample.
    """

    log_mixture: Tensor

    def __init__(self, model: nn.Module, num_components: int) -> None:
        super().__init__()
        self.register_buffer("log_mixture", torch.full((num_components,), 1 / num_components).log())
        self.components = nn.ModuleList(copy.deepcopy(model) for _ in range(num_components))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return log sum_k mixture_k softmax(component_k(inputs))."""
        outputs = torch.stack([component(inputs) for component in self.components])  # (K, n, classes, ...)
        shares = self.log_mixture.view(-1, *[1] * (outputs.ndim - 1))
        return torch.logsumexp(F.log_softmax(outputs, dim=2) + shares, dim=0)


@dataclass(frozen=True, eq=False)
class Components:
    """The shared components."""

    models: Tensor  # (K, P)
    num_parameters: int  # leading entries of a component that are trained; statistics follow
    epoch: int = 0


class FedEM(Algorithm):
    """A client downloads all components, finds its mixture by EM on its data, trains all of them and uploads all.

    Predictions are those of the mixture. Up and down, a model is K times as large as CDFL's.
    """

    name: ClassVar[str] = "fedem"
    uses_proxy = False

    def network(self, model: nn.Module, num_clusters: int) -> nn.Module:
        """Return what clients train: all components and a mixture."""
        return MixtureNetwork(model, num_clusters)

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin with the pre-trained clusters as components."""
        return Components(cluster_models, num_parameters)

    def join(self, state: Any) -> Reply:
        """Send the components with equal shares."""
        uniform = torch.full((len(state.models),), 1 / len(state.models), dtype=torch.float64)
        return Reply(_vector(state, uniform), state.epoch, uniform, torch.zeros_like(uniform), 0)

    def assign(self, state: Any, reply: Reply, view: ClientView) -> Assignment:
        """Find the mixture by EM on the new data (the E-step), and train from the components with it."""
        mixture = mixture_of(-view.losses(state.models)).cpu()
        return Assignment(_vector(state, mixture), reply.epoch, reply.client, mixture=mixture)

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Move all components along the change; their statistics move towards the upload."""
        rates, mixture = self.settings.rates, assignment.mixture
        epoch = state.epoch + 1
        staleness = epoch - upload.base_epoch
        assert mixture is not None  # noqa: S101  `assign` made one
        if is_too_stale(staleness, rates):
            state = replace(state, epoch=epoch)
            zeros = torch.zeros_like(mixture)
            return state, Reply(_vector(state, mixture), epoch, mixture, zeros, staleness, "deprecated")
        rate = rates.base_rate * float(staleness_factor(torch.tensor(staleness), rates))
        trained = state.num_parameters
        uploaded, base = (_split(vector, state) for vector in (upload.local_model, assignment.personal_model))
        models = torch.cat(
            [
                state.models[:, :trained] + rate * (uploaded[:, :trained] - base[:, :trained]),
                (1 - rate) * state.models[:, trained:] + rate * uploaded[:, trained:],
            ],
            dim=1,
        )
        state = replace(state, models=models, epoch=epoch)
        return state, Reply(_vector(state, mixture), epoch, mixture, torch.full_like(mixture, rate), staleness)

    def cluster_models(self, state: Any) -> Tensor:
        """Return the components."""
        models: Tensor = state.models
        return models


def _vector(state: Components, mixture: Tensor) -> Tensor:
    """Return the components and a mixture (K,) as the vector of a `MixtureNetwork`."""
    trained = state.num_parameters
    log_mixture = mixture.clamp_min(1e-12).log().to(state.models)
    return torch.cat([state.models[:, :trained].flatten(), log_mixture, state.models[:, trained:].flatten()])


def _split(vector: Tensor, state: Components) -> Tensor:
    """Return the components (K, P) of such a vector."""
    count, size = state.models.shape
    trained = state.num_parameters
    parameters, _, statistics = vector.split([count * trained, count, count * (size - trained)])
    return torch.cat([parameters.view(count, -1), statistics.view(count, size - trained)], dim=1)
