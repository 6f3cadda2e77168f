"""A world small enough to work out by hand: F(w; D_k) = ||w - centre_k||^2."""

import torch
from torch import Tensor, nn

from cdfl.core import Limited, Measures, ServerState, Settings, Upload, Verdict, initial_state, take_step
from cdfl.core.defence import bounded
from cdfl.core.state import ACCEPTED

FORBIDDEN = 13.0  # `Careful` does not admit it

# The server's rules as printed in the paper, but not its values. Examples by hand begin with these.
AS_PRINTED = Settings(
    measures="plain",
    rate_floor="mean",
    cluster_step="towards",
    staleness_hinge="paper",
    staleness_slope=0.0,
    staleness_grace=5.0,
)


class Proxy:
    """The proxy sets of the toy world; records the clusters of each call."""

    def __init__(self, centres) -> None:
        self.centres = torch.as_tensor(centres)  # (K, P)
        self.calls: list[list[int]] = []

    def __call__(self, models: Tensor, clusters: Tensor) -> Tensor:
        assert models.shape == (len(clusters), self.centres.shape[1])
        self.calls.append(clusters.tolist())
        return ((models - self.centres[clusters]) ** 2).sum(dim=1)


def fresh_losses(state: ServerState, proxy: Proxy) -> Tensor:
    """F(w_k; D_k) of every cluster, computed now."""
    return proxy(state.cluster_models, torch.arange(state.num_clusters)).double()


def forbidden(models: Tensor, clusters: Tensor) -> Tensor:
    """An `evaluate` that must not be called."""
    raise AssertionError("evaluate was called")


def pair() -> tuple[ServerState, Proxy]:
    """Two clusters of one number each, w = (0, 10), with centres (1, 9): each has a loss of 1."""
    proxy = Proxy([[1.0], [9.0]])
    state = initial_state(torch.tensor([[0.0], [10.0]]), proxy)
    proxy.calls.clear()
    return state, proxy


class Fixed:
    """An estimator that returns one mixture, and records the measures that it is passed."""

    needs_measures = True

    def __init__(self, *mixture: float) -> None:
        self.mixture = torch.tensor(mixture)
        self.seen: list[list[list[float]]] = []

    def begin(self, num_clusters: int) -> Tensor:
        return torch.empty(0)

    def __call__(self, upload: Upload, measures: Measures, memory: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        self.seen.append([values.tolist() for values in measures])
        return self.mixture, memory


class Careful:
    """A defence that bounds the change, tries the step, and halves or refuses it if a cluster gets worse.

    The server remembers by how much steps were shrunk, and of each client how often it was refused.
    """

    def __init__(self, longest: float = 10.0, worse: float = 1.0) -> None:
        self.longest = longest
        self.worse = worse  # times the loss before

    needs_base, counts_deprecated = True, True

    def admit(self, state, upload, client):
        if float(upload.local_model[0]) == FORBIDDEN:
            return upload, Verdict(False, client=client.defence, reason="not today")
        length = float((upload.local_model - upload.base_model).norm())
        factor = self.longest / max(length, self.longest)
        return bounded(upload, state.num_parameters, (factor, factor)), ACCEPTED

    def limit(self, state, upload, rates, client, settings, evaluate):
        length = float((upload.local_model - upload.base_model).norm())
        refused = client.defence[0] if client.defence else 0.0
        for factor in (1.0, 0.5):
            models = take_step(state, upload, factor * rates, settings)
            losses = evaluate(models, torch.arange(state.num_clusters)).double()
            if bool((losses <= self.worse * state.cluster_losses + 1e-6).all()):
                verdict = Verdict(True, (length, factor), (refused,), bounds=upload.bounds)
                return Limited(factor * rates, losses, verdict)
        return Limited(0 * rates, losses, Verdict(False, (length, 0.0), (refused + 1,), "it makes a cluster worse"))

    def remember(self, memory, verdict):
        return torch.cat([memory, memory.new_tensor(verdict.seen[1:])])


class Point(nn.Module):
    """A model that returns its weights for any input."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weights.expand(len(inputs), -1)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """||outputs - targets||^2 / 2 of a sample, on average; its gradient at a Point w is w - mean(targets)."""
    return ((outputs - targets) ** 2).sum(dim=1).mean() / 2


def bits(tensor: Tensor) -> list[int]:
    """The bytes of a tensor. Unlike ==, they tell -0.0 from 0.0."""
    return tensor.reshape(-1).contiguous().view(torch.uint8).tolist()
