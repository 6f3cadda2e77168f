"""A Flower `NumPyClient` as a client of a CDFL server, unchanged: its `fit` is the local training.

Flower itself is not needed, and not imported.
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
    """What is used of Flower's class."""

    def fit(self, parameters: Any, config: Any) -> tuple[Any, int, Any]:
        """Train from parameters; returns the new ones, how many samples there were, and metrics."""
        ...

    def evaluate(self, parameters: Any, config: Any) -> tuple[float, int, Any]:
        """The loss of parameters, how many samples there were, and metrics."""
        ...


class FlowerClient:
    """Lets a `NumPyClient` take part.

    `client.model` says what the arrays mean: one for each entry of its `state_dict`, in that order, as Flower's
    examples have it. Integer entries (batch-norm counters) do not travel in CDFL; each client keeps its own.
    """

    def __init__(self, numpy_client: NumPyClient, client: Client) -> None:
        self.numpy_client, self.client = numpy_client, client

    def join(self) -> Reply | None:
        """Fetch a model."""
        return self.client.join()

    def update(self, config: Config | None = None) -> Reply | None:
        """Let `fit` train from the model last received, upload, receive the personal model; as `Client.update`."""
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
        """Let `evaluate` judge the model that the client holds."""
        return self.numpy_client.evaluate(to_arrays(self.client.model), dict(config or {}))


def to_arrays(model: nn.Module) -> list[np.ndarray]:
    """A model as Flower's examples send it: every entry of its `state_dict`, in order."""
    return [value.detach().cpu().numpy().copy() for value in model.state_dict().values()]


def put_arrays(model: nn.Module, arrays: Arrays) -> None:
    """Put arrays into a model."""
    state = model.state_dict()
    if len(arrays) != len(state):
        raise ValueError(
            f"fit returned {len(arrays)} arrays; expected {len(state)}, one for each entry of the model's state_dict: "
            "let get_parameters return all of them"
        )
    for (name, tensor), array in zip(state.items(), arrays, strict=True):
        if tuple(np.shape(array)) != tuple(tensor.shape):
            raise ValueError(f"fit returned {np.shape(array)} for {name}; expected {tuple(tensor.shape)}")
        with torch.no_grad():
            tensor.copy_(torch.as_tensor(np.asarray(array)))


def _keep_integers(model: nn.Module, trained: nn.Module) -> None:
    """Copy what does not travel, counters among it."""
    mine = model.state_dict()
    for name, tensor in trained.state_dict().items():
        if not tensor.is_floating_point():
            mine[name].copy_(tensor)
