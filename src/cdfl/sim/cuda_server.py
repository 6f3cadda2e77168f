"""CDFL's server step as one CUDA graph, so that the host never waits for the device.

The mixture decides which clusters move and stays on the GPU. Kernels skip clusters that do not move, so no
synchronisation is needed.
"""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from cdfl.algorithms import CDFL, Algorithm, Assignment
from cdfl.core import (
    NO_DEFENCE,
    Evaluate,
    Measures,
    NotFiniteError,
    PrintedEstimator,
    RelativeEstimator,
    Reply,
    ServerState,
    Upload,
    estimate_and_rate,
    is_too_stale,
    personalize,
    reply_weights,
    take_step,
)
from cdfl.core.update import losses_after
from cdfl.sim.cuda_client_stack import GraphStack, ProxyLosses, capture
from cdfl.sim.engine import DataSet


class GraphServer(CDFL):
    """CDFL without a defence. Its graph records the functions that `core.server_update` calls."""

    def __init__(self, algorithm: CDFL, stack: GraphStack, sets: Sequence[DataSet]) -> None:
        super().__init__(algorithm.settings, algorithm.estimator)
        self.stack = stack
        self.proxies = ProxyLosses(stack, sets)
        self._graph: _ServerGraph | None = None
        self._last: ServerState | None = None  # the state that the graph's tensors hold

    @staticmethod
    def fits(algorithm: Algorithm) -> TypeGuard[CDFL]:
        """Return whether the graph can run this algorithm; a subclass may override anything, so it cannot."""
        if not isinstance(algorithm, CDFL) or type(algorithm) is not CDFL or not algorithm.uses_proxy:
            return False
        return type(algorithm.estimator) in (PrintedEstimator, RelativeEstimator) and algorithm.defence is NO_DEFENCE

    def initial(self, cluster_models: Tensor, evaluate: Evaluate, num_parameters: int) -> ServerState:
        """Begin at epoch 0, with everything on the device."""
        return self._on_device(super().initial(cluster_models, evaluate, num_parameters))

    def server_update(
        self, state: ServerState, upload: Upload, assignment: Assignment, evaluate: Evaluate
    ) -> tuple[ServerState, Reply]:
        """Take one upload and answer it."""
        epoch = state.epoch + 1
        if upload.losses is None or is_too_stale(epoch - upload.base_epoch, self.settings.rates):
            state, reply = super().server_update(state, upload, assignment, evaluate)
            return self._on_device(state), reply
        if not bool(torch.isfinite(upload.losses).all()):  # they came to the host with their stack
            raise NotFiniteError(f"the losses of the upload: {upload.losses.tolist()}; expected finite numbers")
        if self._graph is None:
            self._graph = _ServerGraph(self, self._on_device(state))
        if state is not self._last:
            self._graph.load(self._on_device(state))
        self._last, reply = self._graph.replay(upload.replace(base_model=assignment.personal_model), epoch)
        return self._last, reply

    def _on_device(self, state: ServerState) -> ServerState:
        """Move the small tensors to the models' device. A loaded checkpoint puts only the models on the device."""
        device, memory = state.cluster_models.device, state.estimator_memory
        if memory.numel() == 0:
            memory = self.estimator.begin(state.num_clusters)
        return state.replace(
            cluster_losses=state.cluster_losses.to(device),
            cluster_epochs=state.cluster_epochs.to(device),
            estimator_memory=memory.to(device),
        )


class _ServerGraph:
    """State, upload and reply in tensors at fixed addresses, and the graph that works on them."""

    def __init__(self, server: GraphServer, state: ServerState) -> None:
        self.server = server
        models = state.cluster_models
        self.state = state.replace(
            cluster_models=models.clone(),
            cluster_losses=state.cluster_losses.double().clone(),
            cluster_epochs=state.cluster_epochs.clone(),
            estimator_memory=state.estimator_memory.clone(),
        )
        number = torch.ones((), dtype=torch.int64, device=models.device)
        self.epoch, self.base_epoch = number, number.clone()
        along = server.settings.rates.cluster_step == "along"
        self.upload = Upload(
            models[0].clone(),
            self.base_epoch,  # type: ignore[arg-type]  # `estimate_and_rate` takes a tensor as well
            losses=self.state.cluster_losses.clone(),
            base_model=models[0].clone() if along else None,
        )
        self.personal_model = models[0].clone()  # (P,)
        self.measures = torch.zeros(3, len(models), dtype=torch.float64, device=models.device)
        self.mixture, self.rates = self.measures[0].clone(), self.measures[0].clone()  # (K,)
        pool = torch.cuda.graph_pool_handle() if models.is_cuda else None
        self.graph = capture(self.step, pool)

    def load(self, state: ServerState) -> None:
        """Copy a state in."""
        for name in ("cluster_models", "cluster_losses", "cluster_epochs", "estimator_memory"):
            getattr(self.state, name).copy_(getattr(state, name))

    def replay(self, upload: Upload, epoch: int) -> tuple[ServerState, Reply]:
        """Run the graph on an upload; return copies of what it made."""
        self.upload.local_model.copy_(upload.local_model)
        if self.upload.base_model is not None and upload.base_model is not None:
            self.upload.base_model.copy_(upload.base_model)
        if self.upload.losses is not None and upload.losses is not None:
            self.upload.losses.copy_(upload.losses, non_blocking=True)
        self.epoch.fill_(epoch)
        self.base_epoch.fill_(upload.base_epoch)
        self.graph.replay()
        state = self.state.replace(
            cluster_models=self.state.cluster_models.clone(),
            cluster_losses=self.state.cluster_losses.clone(),
            cluster_epochs=self.state.cluster_epochs.clone(),
            estimator_memory=self.state.estimator_memory.clone(),
            epoch=epoch,
        )
        return state, Reply(
            self.personal_model.clone(),
            epoch,
            self.mixture.clone(),
            self.rates.clone(),
            epoch - upload.base_epoch,
            measures=Measures(*self.measures.clone()),
        )

    def step(self) -> None:
        """Compute ServerUpdate for an upload that is not deprecated, and write its results to the fixed tensors."""
        settings = self.server.settings
        decision = estimate_and_rate(self.state, self.upload, self.epoch, settings, self.server.estimator)
        models = take_step(self.state, self.upload, decision.rates, settings.rates)
        fresh = self.server.proxies.losses(models, wanted=decision.rates > 0).double()
        self.personal_model.copy_(personalize(models, reply_weights(decision.mixture, settings.rates)))
        self.measures.copy_(torch.stack(decision.measures))
        self.mixture.copy_(decision.mixture)
        self.rates.copy_(decision.rates)
        losses = losses_after(self.state, decision.rates)
        self.state.cluster_losses.copy_(torch.where(losses.isnan(), fresh, losses))
        self.state.cluster_epochs.copy_(decision.cluster_epochs)
        self.state.estimator_memory.copy_(decision.estimator_memory)
        self.state.cluster_models.copy_(models)
