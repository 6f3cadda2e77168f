"""Graph stacks of tokens and numbers, and networks that no graph can capture. Without a GPU, steps run as they are."""

import logging

import pytest
import torch
from torch import Tensor, nn

from cdfl.algorithms import make_algorithm
from cdfl.core import client_update, flatten
from cdfl.models import build
from cdfl.sim.cuda_client_stack import GraphStack, ProxyLosses, capture
from cdfl.sim.cuda_server import GraphServer
from cdfl.sim.engine import Training
from cdfl.sim.scenario_instance import ScenarioInstance

from .test_any_data import datasets, make_instance, tokens
from .world import SETTINGS, make_scenario

pytestmark = pytest.mark.slow

gpu = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"))
DEVICES = pytest.mark.parametrize("device", ["cpu", gpu])


def on(device: str, instance: ScenarioInstance) -> ScenarioInstance:
    return ScenarioInstance(instance.scenario, instance.federation.to(device), instance.settings, torch.float64)


def trainings_of(instance: ScenarioInstance, count: int = 5) -> list[Training]:
    draws = [instance.federation.draw(client, 0) for client in range(count)]
    start = flatten(instance.model)
    return [
        Training(instance.federation, draw.train, start, instance.plan(draw, client, 0), 0)
        for client, draw in enumerate(draws)
    ]


def alone(instance: ScenarioInstance, training: Training) -> Tensor:
    inputs, targets = instance.inputs(training.samples)
    batches = ((inputs[batch], targets[batch]) for batch in training.plan.to(inputs.device))
    return client_update(instance.model, training.start, batches, instance.loss, instance.settings.training)


def stack_of(instance: ScenarioInstance, **options: object) -> GraphStack:
    training = instance.settings.training
    return GraphStack(
        instance.model, instance.loss, training, instance.dtype, precision="float32", images=False, **options
    )


@DEVICES
@pytest.mark.parametrize("name", ["a table, two numbers to predict", "tokens", "a loss that branches"])
def test_other_data_in_graphs(device: str, name: str) -> None:
    instance = on(device, make_instance(name))
    trainings = trainings_of(instance)
    expected = torch.stack([alone(instance, training) for training in trainings])
    assert (stack_of(instance).train(trainings) - expected).abs().max() < 1e-9


@DEVICES
@pytest.mark.parametrize("model", ["gru", "transformer"])
def test_text_in_graphs(device: str, model: str) -> None:
    clusters = datasets(tokens, lambda inputs, angle: (inputs + int(angle)) % 7, 7)
    scenario = make_scenario(clusters=clusters, model=model, sizes=None)
    instance = ScenarioInstance(scenario, scenario.federation(0).to(device), SETTINGS, torch.float64)
    trainings = trainings_of(instance)
    expected = torch.stack([alone(instance, training) for training in trainings])
    stack = stack_of(instance)
    assert (stack.train(trainings) - expected).abs().max() < 1e-9
    proxies = ProxyLosses(stack, instance.proxy_sets).losses(expected[:4])
    assert (proxies - instance.evaluate(expected[:4], torch.arange(4))).abs().max() < 1e-9
    plain = make_algorithm("cdfl", SETTINGS)
    server = GraphServer(plain, stack, instance.proxy_sets)
    assert GraphServer.fits(plain)
    state = server.initial(instance.pretrain(), instance.evaluate, instance.layout.num_parameters)
    assert state.num_clusters == 4


class Waiting(nn.Module):
    """Copies a number to the device at every call, which a graph cannot capture."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = build("mlp", (3,), 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs * torch.tensor([0.5], dtype=inputs.dtype).to(inputs.device))


@DEVICES
def test_what_cannot_be_captured_runs_without_a_graph(device: str, caplog: pytest.LogCaptureFixture) -> None:
    instance = on(device, make_instance("a table, two numbers to predict", model=Waiting))
    trainings = trainings_of(instance)
    expected = torch.stack([alone(instance, training) for training in trainings])
    with caplog.at_level(logging.WARNING, "cdfl.sim"):
        assert (stack_of(instance).train(trainings) - expected).abs().max() < 1e-9
    assert ("cannot be captured in a CUDA graph" in caplog.text) == (device == "cuda")


def test_an_error_while_capturing_falls_back(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The same without a GPU: whatever the capture raises, the work is done."""
    done = []

    def fails(work: object, pool: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    monkeypatch.setattr("cdfl.sim.cuda_client_stack._captured", fails)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    capture(lambda: done.append(1), pool=(0, 1)).replay()
    assert done == [1]
    assert "cannot be captured in a CUDA graph (operation not permitted when stream is capturing)" in caplog.text

    def out_of_memory(work: object, pool: object) -> None:
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr("cdfl.sim.cuda_client_stack._captured", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        capture(lambda: None, pool=(0, 1))
