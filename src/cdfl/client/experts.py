"""The experts of a client: the models of all clusters, and the router that says which to trust on which input."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cdfl.client.batches import Batch, to_device
from cdfl.client.errors import ClientError
from cdfl.core import Layout, Loss, RateSettings, personalize, reply_weights
from cdfl.core.experts import PRIOR, combine_for, expert_weights, mixture_of, own_mixture
from cdfl.core.proxy_sets import for_evaluation, in_pieces, outputs
from cdfl.core.router import View
from cdfl.core.sample_losses import each_loss
from cdfl.models.routers import build_router
from cdfl.wire import RouterMessage

RECENT = 200  # inputs that the mixture is estimated from by `Client.see`; more if more come at once


@dataclass(frozen=True)
class Seen:
    """What a client's inputs tell, without targets."""

    mixture: tuple[float, ...]  # the client's own estimate
    inputs: int  # that it was made from
    strange: float  # share of those that fit no cluster


def moved(now: Sequence[float], before: Sequence[float]) -> float:
    """Return the total variation of two mixtures: the share of data that changed clusters.

    >>> moved((0.5, 0.5, 0.0), (0.5, 0.0, 0.5))
    0.5
    """
    return sum(abs(one - other) for one, other in zip(now, before, strict=True)) / 2


def noisy(mixture: Sequence[float], deviation: float) -> tuple[float, ...]:
    """Return a mixture with noise, divided by its sum."""
    if deviation == 0:
        return tuple(mixture)
    shares = torch.tensor(mixture, dtype=torch.float64)
    shares = (shares + deviation * torch.randn(len(shares), dtype=torch.float64)).clamp_min(0)
    return tuple((shares / shares.sum()).tolist()) if shares.sum() > 0 else tuple([1 / len(shares)] * len(shares))


class ClientRouter:
    """The router, made for one device."""

    def __init__(self, message: RouterMessage, module: nn.Module | None, device: torch.device) -> None:
        if message.spec is None and module is None:
            raise ClientError("the server's router is a module of its own; pass the same one: Client(router=...)")
        made = copy.deepcopy(module) if message.spec is None else build_router(message.spec)
        assert made is not None  # noqa: S101  checked above
        self.module, self.message, self.router = for_evaluation(made.to(device)), message, message.router
        if Layout.of(self.module).size != len(self.router.model):
            raise ClientError("the router of this client is not the server's; pass the same module")
        self._rates = RateSettings(
            reply_clusters=message.reply_clusters,  # type: ignore[arg-type]
            rate_floor=message.rate_floor,  # type: ignore[arg-type]
        )
        self._evidence = torch.empty(0, len(self.router.bias), dtype=torch.float64)
        self._is_strange = torch.empty(0, dtype=torch.bool)

    def weights(self, mixture: Sequence[float]) -> Tensor:
        """Return the weights of the clusters in a personal model (K,), as the server mixes it."""
        return reply_weights(torch.tensor(mixture, dtype=torch.float64), self._rates)

    def evidence(self, inputs: Tensor) -> Tensor:
        """Return log p(input | cluster) (N, K)."""
        module = self.module.to(inputs.device)
        evidence: Tensor = in_pieces(lambda piece: self.router.evidence(module, piece), inputs)
        return evidence

    def look_at(self, inputs: Tensor) -> View:
        """Return the evidence, and which inputs fit no cluster."""
        return self.router.look_at(self.module.to(inputs.device), inputs)

    def see(self, inputs: Tensor, prior: Sequence[float]) -> Seen:
        """Estimate the mixture from the last inputs, these included."""
        view = self.look_at(inputs)
        recent = max(RECENT, len(inputs))
        self._evidence = torch.cat([self._evidence, view.evidence.cpu()])[-recent:]
        self._is_strange = torch.cat([self._is_strange, view.is_strange.cpu()])[-recent:]
        mixture = mixture_of(self._evidence, torch.tensor(prior, dtype=torch.float64), PRIOR)
        strange = float(self._is_strange.double().mean()) if len(self._is_strange) else 0.0
        return Seen(tuple(mixture.tolist()), len(self._evidence), strange)

    def forget(self) -> None:
        """Forget the inputs that were seen."""
        self._evidence, self._is_strange = self._evidence[:0], self._is_strange[:0]


class Experts:
    """Cluster models behind a router. `network` gives their architecture."""

    def __init__(self, models: Tensor, network: nn.Module, loss: Loss) -> None:
        self.models, self.network, self.loss = models, network, loss  # models: (K, P), on the CPU
        self.layout = Layout.of(network)
        self._there: tuple[nn.Module, Tensor] | None = None  # a network and the models, on the network's device

    def mixed(self, weights: Tensor) -> Tensor:
        """Return the personal model (P,), computed on the CPU as the server does."""
        return personalize(self.models, weights)

    def own_mixture(self, router: ClientRouter, batches: Sequence[Batch], prior: Sequence[float]) -> Seen:
        """Estimate the mixture of labelled data, from inputs and, if the router is not sure, from targets."""
        device = self._device
        inputs = torch.cat([to_device(own, device) for own, _ in batches])
        targets = torch.cat([to_device(own, device) for _, own in batches])
        view = router.look_at(inputs)

        def losses(places: Tensor) -> Tensor:
            some = places.to(device)
            network, models = self._on_device()
            found = [self._outputs(network, model, inputs[some]) for model in models]
            return torch.stack([each_loss(self.loss, own, targets[some]) for own in found], dim=1)

        mixture = own_mixture(
            view.evidence,
            torch.tensor(prior, dtype=torch.float64),
            router.router.information,
            router.message.loss_scale,
            losses,
        )
        return Seen(tuple(mixture.tolist()), len(inputs), float(view.is_strange.double().mean()))

    def predict(self, router: ClientRouter, inputs: Tensor, mixture: Sequence[float], *, one_expert: bool) -> Tensor:
        """Return what the experts together predict; with `one_expert`, each input is given to its likeliest alone."""
        weights = expert_weights(router.evidence(inputs), torch.tensor(mixture).to(inputs.device))  # (N, K)
        combine: Callable[[Tensor, Tensor], Tensor] = combine_for(self.loss)
        network, models = self._on_device()
        if not one_expert:
            return combine(torch.stack([self._outputs(network, model, inputs) for model in models]), weights)
        places = [(weights.argmax(dim=1) == expert).nonzero().flatten() for expert in range(len(models))]
        answers = [
            self._outputs(network, model, inputs[own]) for model, own in zip(models, places, strict=True) if len(own)
        ]
        found = torch.cat(answers)[torch.cat(places).argsort()]
        return combine(found[None], torch.ones(len(inputs), 1, device=inputs.device))

    def _outputs(self, network: nn.Module, model: Tensor, inputs: Any) -> Tensor:
        found: Tensor = in_pieces(lambda piece: outputs(network, self.layout, model, piece), inputs)
        return found

    def _on_device(self) -> tuple[nn.Module, Tensor]:
        """Return a copy of the network that evaluates fast, and the models."""
        if self._there is None or self._there[1].device != self._device:
            self._there = for_evaluation(self.network), self.models.to(self._device)
        return self._there

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device
