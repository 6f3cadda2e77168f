"""Use an unchanged Flower `NumPyClient` as a client of a CDFL server: its `fit` does the local training.

Flower itself is neither needed nor imported.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from cdfl.client.client import Client, Reply
from cdfl.core import flatten, load

Arrays = Sequence[np.ndarray]
Config = Mapping[str, Any]


class NumPyClient(Protocol):
    """The methods of Flower's class that are used."""

    def fit(self, parameters: Any, config: Any) -> tuple[Any, int, Any]:
        """Train from these parameters; return the new ones, the number of samples, and metrics."""
        ...

    def evaluate(self, parameters: Any, config: Any) -> tuple[float, int, Any]:
        """Return the loss of these parameters, the number of samples, and metrics."""
        ...


class FlowerClient:
    """Connects a `NumPyClient` to a CDFL server.

    The arrays are the entries of `client.model.state_dict()`, in that order, as in Flower's examples. Integer entries
    (batch-norm counters) are not uploaded; each client keeps its own.
    """

    def __init__(self, numpy_client: NumPyClient, client: Client) -> None:
        self.numpy_client, self.client = numpy_client, client
        client.one_model = True  # Flower's clients know one model

    def join(self) -> Reply | None:
        """Fetch a model."""
        return self.client.join()

    def update(self, config: Config | None = None) -> Reply | None:
        """As `Client.update`, with the training done by `fit`."""
        client = self.client
        client.prepare()
        scratch = copy.deepcopy(client.model)
        load(scratch, client.start_model())
        arrays, _, _ = self.numpy_client.fit(to_arrays(scratch), dict(config or {}))
        put_arrays(scratch, arrays)
        reply = client.upload(flatten(scratch))
        _keep_integers(client.model, scratch)
        return reply

    def evaluate(self, config: Config | None = None) -> tuple[float, int, Any]:
        """Run `evaluate` on the client's model."""
        return self.numpy_client.evaluate(to_arrays(self.client.model), dict(config or {}))


def to_arrays(model: nn.Module) -> list[np.ndarray]:
    """Return every entry of a model's `state_dict`, in order, as Flower's examples do."""
    return [value.detach().cpu().numpy().copy() for value in model.state_dict().values()]


def put_arrays(model: nn.Module, arrays: Arrays) -> None:
    """Copy arrays into a model."""
    state = model.state_dict()
    if len(arrays) != len(state):
        raise ValueError(
            f"fit returned {len(arrays)} arrays; expected {len(state)}, one for each entry of the model's state_dict; "
            "return all of them from get_parameters"
        )
    for (name, tensor), array in zip(state.items(), arrays, strict=True):
        if tuple(np.shape(array)) != tuple(tensor.shape):
            raise ValueError(f"fit returned {np.shape(array)} for {name}; expected {tuple(tensor.shape)}")
        with torch.no_grad():
            tensor.copy_(torch.as_tensor(np.asarray(array)))


def _keep_integers(model: nn.Module, trained: nn.Module) -> None:
    """Copy the integer entries, which are not uploaded."""
    mine = model.state_dict()
    for name, tensor in trained.state_dict().items():
        if not tensor.is_floating_point():
            mine[name].copy_(tensor)
