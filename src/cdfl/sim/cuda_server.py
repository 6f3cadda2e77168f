"""CDFL's server step on a GPU, as one graph: from upload to reply nobody waits for the device.

The mixture decides which clusters move, and only the device knows it: kernels skip the convolutions of clusters that
did not, and whatever they leave there is dropped. Asking which moved would cost more than it saves.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cdfl.algorithms import Algorithm, Assignment
from cdfl.core import (
    Evaluate,
    Measures,
    NotFiniteError,
    Reply,
    ServerState,
    Upload,
    estimate_mixture,
    mixture_of,
    personalize,
    relative,
    reply_weights,
    update_clusters,
    update_rates,
    usual_after,
)
from cdfl.sim.cuda import Eager, GraphStack, ProxyLosses, captured
from cdfl.sim.engine import DataSet


class GraphServer(Algorithm):
    """CDFL with the paper's estimator; the same arithmetic as `core.server_update`, in the same order."""

    def __init__(self, algorithm: Algorithm, stack: GraphStack, sets: Sequence[DataSet]) -> None:
        super().__init__(algorithm.settings)
        self.stack = stack
        self.proxies = ProxyLosses(stack, sets)
        self._held: _Held | None = None
        self._last: ServerState | None = None  # the state that the graph's tensors hold

    @staticmethod
    def fits(algorithm: Algorithm) -> bool:
        """Is this CDFL with the paper's estimator, and are all uploads taken?"""
        plain = type(algorithm) is Algorithm and algorithm.estimate is estimate_mixture
        return plain and algorithm.settings.max_harm is None

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> Any:
        """Begin at epoch 0, with everything on the device."""
        return _on(cluster_models.device, super().initial(cluster_models, evaluate, num_parameters))

    def server_update(
        self, state: Any, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[Any, Reply]:
        """Take one upload and answer it."""
        epoch = state.epoch + 1
        staleness, limit = epoch - upload.base_epoch, self.settings.max_staleness
        if upload.losses is None or (limit is not None and staleness > limit):
            state, reply = super().server_update(state, upload, assignment, evaluate)
            return _on(upload.local_model.device, state), reply
        if not bool(torch.isfinite(upload.losses).all()):  # they came to the host with their stack
            raise NotFiniteError(f"the losses of the upload: {upload.losses.tolist()}; expected finite numbers")
        if self._held is None:
            self._held = _Held(self, state)
        held = self._held
        if state is not self._last:
            held.models.copy_(state.cluster_models)
            held.losses.copy_(state.cluster_losses)
            held.epochs.copy_(state.cluster_epochs)
            held.usual.copy_(state.usual_measures)
        held.local_model.copy_(upload.local_model)
        if held.base_model is not None:
            held.base_model.copy_(assignment.personal_model)
        held.upload_losses.copy_(upload.losses, non_blocking=True)
        held.epoch.fill_(epoch)
        held.base_epoch.fill_(upload.base_epoch)
        held.graph.replay()
        reply = Reply(
            held.reply.clone(),
            epoch,
            held.mixture.clone(),
            held.rates.clone(),
            staleness,
            deprecated=False,
            measures=Measures(*held.measures.clone()),
        )
        self._last = ServerState(
            held.models.clone(),
            held.losses.clone(),
            held.epochs.clone(),
            epoch,
            state.num_parameters,
            usual_measures=held.usual.clone(),
        )
        return self._last, reply


class _Held:
    """The tensors of the graph, and the graph."""

    def __init__(self, server: GraphServer, state: ServerState) -> None:
        models = state.cluster_models
        state = _on(models.device, state)  # from a checkpoint only the models come to the device
        self.server = server
        self.num_parameters = state.num_parameters
        self.models = models.clone()  # (K, P)
        self.losses = state.cluster_losses.double().clone()  # (K,)
        self.epochs = state.cluster_epochs.clone()  # (K,)
        self.usual = state.usual_measures.clone()  # (3, K)
        self.measures = torch.zeros_like(self.usual)  # (3, K)
        self.local_model = models[0].clone()  # (P,)
        along = server.settings.cluster_step == "along"
        self.base_model = models[0].clone() if along else None  # (P,)
        self.upload_losses = self.losses.clone()  # (K,)
        self.epoch = torch.ones((), dtype=torch.int64, device=models.device)
        self.base_epoch = torch.zeros_like(self.epoch)
        self.reply = models[0].clone()  # (P,)
        self.mixture, self.rates = self.losses.clone(), self.losses.clone()  # (K,)
        pool = torch.cuda.graph_pool_handle() if models.is_cuda else None
        self.graph = Eager(self.step) if pool is None else captured(self.step, pool)

    def step(self) -> None:
        """ServerUpdate of Algorithm 1, for an upload that is not deprecated."""
        settings = self.server.settings
        trained = slice(0, self.num_parameters)
        distances = (self.models[:, trained] - self.local_model[trained]).norm(dim=1).double()
        measures = Measures(self.upload_losses, (self.losses - self.upload_losses).abs(), distances)
        self.measures.copy_(torch.stack(measures))
        if settings.measures == "relative":
            mixture = mixture_of(relative(measures, self.usual), settings)
            self.usual.copy_(usual_after(self.usual, measures, self.epoch))
        else:
            mixture = mixture_of(measures, settings)
        rates, epochs = update_rates(mixture, self.epoch, self.base_epoch, self.epochs, settings)
        models = update_clusters(self.models, self.local_model, rates, self.base_model, self.num_parameters)
        fresh = self.server.proxies.losses(models, wanted=rates > 0).double()
        self.reply.copy_(personalize(models, reply_weights(mixture, settings)))
        self.mixture.copy_(mixture)
        self.rates.copy_(rates)
        self.losses.copy_(torch.where(rates == 0, self.losses, fresh))
        self.epochs.copy_(epochs)
        self.models.copy_(models)


def _on(device: torch.device, state: ServerState) -> ServerState:
    return state.replace(
        cluster_losses=state.cluster_losses.to(device),
        cluster_epochs=state.cluster_epochs.to(device),
        usual_measures=state.usual_measures.to(device),
    )
