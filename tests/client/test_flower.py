"""A Flower `NumPyClient` takes part unchanged."""

import numpy as np
import pytest
import torch

from cdfl.client import FlowerClient
from cdfl.client.flower import to_arrays
from cdfl.core import flatten

from .faults import BadNetwork
from .toy import make_data, make_model

try:
    from flwr.client import NumPyClient
except ImportError:  # it asks for an older typer than ours (test_flower_itself.py); this is all we use of it
    NumPyClient = object


class Digits(NumPyClient):
    """As in Flower's PyTorch tutorial: arrays in, `state_dict`, train, arrays out."""

    def __init__(self, net):
        self.net = net
        self.configs = []

    def get_parameters(self, config):
        return [value.cpu().numpy() for _, value in self.net.state_dict().items()]

    def set_parameters(self, parameters):
        names = self.net.state_dict().keys()
        state = {name: torch.tensor(value) for name, value in zip(names, parameters, strict=True)}
        self.net.load_state_dict(state, strict=True)

    def fit(self, parameters, config):
        self.configs.append(config)
        self.set_parameters(parameters)
        self.net.train()
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        inputs, targets = make_data()
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.net(inputs), targets).backward()
            optimizer.step()
        return self.get_parameters(config={}), len(inputs), {}

    def evaluate(self, parameters, config):
        self.set_parameters(parameters)
        self.net.eval()
        inputs, targets = make_data(seed=5)
        with torch.no_grad():
            outputs = self.net(inputs)
        accuracy = (outputs.argmax(dim=1) == targets).float().mean().item()
        return float(torch.nn.functional.cross_entropy(outputs, targets)), len(inputs), {"accuracy": accuracy}


@pytest.fixture(params=["another net", "the same net"])
def flower(request, make_client):
    client = make_client()
    net = client.model if request.param == "the same net" else make_model()
    return FlowerClient(Digits(net), client)


@pytest.mark.skipif(NumPyClient is object, reason="Flower is not installed; `make test-flower` tests with it")
def test_it_is_flowers_own_class():
    assert NumPyClient.__module__.startswith("flwr.")


def test_it_joins_fits_uploads_and_evaluates(server, flower):
    flower.join()
    start, samples, metrics = flower.evaluate()
    assert samples == 24
    for epoch in (1, 2, 3):
        assert flower.update({"round": epoch}).epoch == epoch
    assert flower.numpy_client.configs == [{"round": 1}, {"round": 2}, {"round": 3}]
    loss, _, metrics = flower.evaluate()
    assert loss < start
    assert set(metrics) == {"accuracy"}
    expected = torch.tensor(flower.client.mixture, dtype=torch.float32) @ server.state.cluster_models
    assert torch.equal(flatten(flower.client.model), expected)


def test_counters_stay_with_the_client(flower):
    flower.update()
    assert flower.client.model[1].num_batches_tracked == 5
    flower.update()
    assert flower.client.model[1].num_batches_tracked == 10
    assert flower.numpy_client.net[1].num_batches_tracked == 10


def test_the_result_of_fit_is_uploaded(server, flower):
    from cdfl import wire

    flower.update()
    fitted = wire.decode_model(server.requests[-1].content, server.layout)
    by_name = server.layout.views(fitted)
    again = Digits(make_model())
    arrays, _, _ = again.fit(to_arrays_of_a_newcomer(), {})
    for (name, tensor), array in zip(make_model().state_dict().items(), arrays, strict=True):
        if tensor.is_floating_point():
            assert np.array_equal(by_name[name].numpy(), array), name


def to_arrays_of_a_newcomer():
    from .toy import ToyServer

    server, model = ToyServer(), make_model()
    with torch.no_grad():
        for name, value in server.layout.views(server.state.cluster_models.mean(dim=0)).items():
            model.state_dict()[name].copy_(value)
    return to_arrays(model)


def test_offline(server, make_client):
    network = BadNetwork(server.handle)
    client = make_client(network)
    flower = FlowerClient(Digits(make_model()), client)
    flower.join()
    network.faults = ["refused"] * 100
    assert flower.update() is None
    assert client.pending
    network.faults = []
    assert flower.update().epoch == 2
    assert len(server.applied) == 2


def test_arrays_that_do_not_fit(make_client):
    client = make_client()
    flower = FlowerClient(Digits(make_model()), client)
    client.join()
    held = flatten(client.model)
    fit = flower.numpy_client.fit
    flower.numpy_client.fit = lambda *args: (fit(*args)[0][:-1], 1, {})
    with pytest.raises(
        ValueError, match=r"fit returned 8 arrays; expected 9, .* return all of them from get_parameters"
    ):
        flower.update()
    flower.numpy_client.fit = lambda *args: ([array[:1] if array.ndim else array for array in fit(*args)[0]], 1, {})
    with pytest.raises(ValueError, match=r"fit returned \(1, 2\) for 0.weight; expected \(4, 2\)"):
        flower.update()
    assert not client.pending
    assert torch.equal(flatten(client.model), held)
