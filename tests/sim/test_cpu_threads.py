"""Pooling before ReLU: nothing but the time may change."""

import copy
import threading

import pytest
import torch
from torch import nn

from cdfl.core import flatten
from cdfl.models import build
from cdfl.sim.cpu_threads import Workers, pool_first
from cdfl.sim.engine import Training

from .world import make_instance


def names(model):
    return [type(layer).__name__ for layer in model]


@pytest.mark.parametrize("special", ["none", "ties", "zeros", "nan", "infinite"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, padding=1), nn.MaxPool2d(2, ceil_mode=True)])
def test_outputs_and_gradients_stay_the_same(special, dtype, pool):
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 3, 9, 9, generator=draw).to(dtype)
    if special == "ties":
        inputs = inputs.round()
    elif special != "none":
        some = torch.rand(inputs.shape, generator=draw) < 0.2
        inputs[some] = {"zeros": -0.0, "nan": float("nan"), "infinite": -float("inf")}[special]
    found = []
    for order in ([nn.ReLU(), pool], [pool, nn.ReLU()]):
        for layout in (torch.contiguous_format, torch.channels_last):
            images = inputs.clone(memory_format=layout).requires_grad_()
            outputs = nn.Sequential(*order)(images)
            (outputs * torch.arange(outputs.numel()).view_as(outputs)).sum().backward()
            found.append((outputs.detach(), images.grad))
    for outputs, gradient in found[1:]:
        torch.testing.assert_close(outputs, found[0][0], rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(gradient, found[0][1], rtol=0, atol=0, equal_nan=True)


def test_every_relu_before_pooling_moves():
    model = build("cnn", (1, 28, 28), 10)
    nested = nn.Sequential(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(2)), nn.ReLU(), nn.AvgPool2d(2))
    before = model.state_dict()
    pool_first(model)
    pool_first(nested)
    assert names(model) == [
        "Conv2d", "MaxPool2d", "ReLU", "Conv2d", "MaxPool2d", "ReLU", "Flatten", "Linear", "ReLU", "Linear",
    ]  # fmt: skip
    assert list(model.state_dict()) == list(before)
    assert names(nested[0]) == ["MaxPool2d", "MaxPool2d", "ReLU"]
    assert names(nested[1:]) == ["ReLU", "AvgPool2d"]


class TakesLayersApart(nn.Module):
    """Uses what comes out of the ReLU in the middle of its layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, inputs):
        hidden = self.layers[0](inputs)
        return self.layers[1](hidden).sum() + hidden.sum()


def test_what_could_notice_stays():
    listened = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    listened[0].register_forward_hook(lambda *_: None)
    with_indices = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True))
    apart = TakesLayersApart()
    for model in (listened, with_indices, apart, nn.Sequential(apart), nn.Linear(1, 1)):
        before = str(model)
        pool_first(model)
        assert str(model) == before


def test_workers_leave_the_model_that_they_were_given():
    instance = make_instance()
    before, weights = str(instance.model), flatten(instance.model)
    given = copy.deepcopy(instance.model)
    engine = Workers(instance.model, instance.loss, instance.settings.training, instance.dtype)
    assert names(engine.model)[1:3] == ["MaxPool2d", "ReLU"]
    assert str(instance.model) == before
    inputs = torch.rand(5, *instance.federation.input_shape, dtype=instance.dtype)
    (outputs,) = engine.outputs(weights[None], inputs)
    torch.testing.assert_close(outputs, given(inputs).detach(), rtol=0, atol=1e-12)


class _Interrupted:
    """Data that raise KeyboardInterrupt once other workers train."""

    def __init__(self, others_train):
        self.others_train = others_train

    def ready(self, samples, dtype):
        assert self.others_train.wait(60)
        raise KeyboardInterrupt


def test_an_interrupt_stops_all_workers():
    """A program ends after its threads, and a training may take minutes."""
    instance, others_train, steps = make_instance(), threading.Event(), []

    def loss(outputs, targets):
        others_train.set()
        steps.append(1)
        return instance.loss(outputs, targets)

    engine = Workers(instance.model, loss, instance.settings.training, instance.dtype, count=2)
    samples = instance.federation.draw(0, 0).train
    long = torch.zeros(100_000, 1, dtype=torch.int64)  # minutes
    start = flatten(instance.model)
    trainings = [
        Training(_Interrupted(others_train), samples, start, long, 0),
        Training(instance.federation, samples, start, long, 0),
    ]
    with pytest.raises(KeyboardInterrupt):
        engine.train(trainings)
    engine._pool.shutdown(wait=True)
    assert 0 < len(steps) < len(long)
