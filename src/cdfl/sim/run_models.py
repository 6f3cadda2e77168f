"""The models at the end of a run, in memory and in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from cdfl.core import Layout
from cdfl.model_files import module_of, write_clusters
from cdfl.sim.simulation import Simulation

MODELS = "models"  # the folder of a run's models, in its folder
CLIENTS = "clients.safetensors"  # personal models, beside those of the clusters


@dataclass(frozen=True, eq=False)
class RunModels:
    """The models at the end of a run, as vectors (P,)."""

    layout: Layout
    about: dict[str, Any]
    clusters: list[Tensor]
    personal: dict[int, Tensor]  # of each client that is there at the end: the last model it was sent
    network: nn.Module | None  # None if it is not known here

    @classmethod
    def of(cls, simulation: Simulation, *, personal: bool = True) -> RunModels:
        """Copy the models of a simulation that is over."""
        clusters = simulation.algorithm.cluster_models(simulation.state).detach().cpu().clone()
        last = simulation.personal_models() if personal else ()
        kept = {number: model.detach().cpu().clone() for number, model in last}
        instance = simulation.instance
        return cls(instance.layout, about_models(simulation), list(clusters), kept, instance.model)

    def save(self, folder: Path) -> None:
        """Write the cluster models to a run's folder."""
        write_clusters(folder / MODELS, self.clusters, self.layout, self.about)

    def save_personal(self, folder: Path) -> None:
        """Write the personal models to a run's folder."""
        if self.personal:
            save_file({str(number): model for number, model in self.personal.items()}, folder / MODELS / CLIENTS)

    def module(self, vector: Tensor) -> nn.Module:
        """Return a network that holds a model."""
        if self.network is None:
            raise ValueError(
                "the network of this run is not known here; load it with cdfl.load(folder, model=...): the "
                "torch.nn.Module, or the problem"
            )
        return module_of(self.network, vector)


def about_models(simulation: Simulation) -> dict[str, Any]:
    """Return what is stored beside the models of a run."""
    instance = simulation.instance
    count = len(simulation.algorithm.cluster_models(simulation.state))
    names = instance.federation.names
    names = names if len(names) == count else ["all"]  # one model serves all
    return {
        "names": names,
        "epoch": simulation.state.epoch,
        "scenario": instance.scenario.name,
        "input_shape": list(instance.federation.input_shape),
        "num_outputs": instance.federation.num_outputs,
    }
