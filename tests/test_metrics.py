"""Scores worked out by hand, and which metric goes with which loss."""

from math import exp, log, log2

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cdfl.metrics import METRICS, Metric, find_metrics

OUTPUTS = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.25, 0.25]]))
CLASSES = torch.tensor([0, 2, 1])
GUESSES, NUMBERS = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 4.0, 3.0])


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "expected"),
    [
        ("accuracy", OUTPUTS, CLASSES, 1 / 3),
        ("top-5", OUTPUTS, CLASSES, 1.0),
        ("binary-accuracy", torch.tensor([0.3, -0.2, 4.0]), torch.tensor([1.0, 1.0, 0.0]), 1 / 3),
        ("perplexity", OUTPUTS, CLASSES, exp(-(log(0.7) + log(0.3) + log(0.25)) / 3)),
        ("bits", OUTPUTS, CLASSES, -(log2(0.7) + log2(0.3) + log2(0.25)) / 3),
        ("rmse", GUESSES, NUMBERS, (5 / 3) ** 0.5),
        ("mae", GUESSES, NUMBERS, 1.0),
        ("r2", GUESSES, NUMBERS, 1 - 5 / (25 / 9 + 16 / 9 + 1 / 9)),  # their mean is 8/3
    ],
)
def test_by_hand(name, outputs, targets, expected):
    assert float(METRICS[name](outputs, targets)) == pytest.approx(expected, rel=1e-6)


def test_every_metric_is_tried_here():
    tried = {"accuracy", "top-5", "binary-accuracy", "perplexity", "bits", "rmse", "mae", "r2"}
    assert tried == set(METRICS)


def test_tokens_have_one_class_at_every_place():
    outputs = torch.zeros(2, 3, 4)  # (n, classes, places), as cross_entropy takes it
    outputs[:, 1] = 1.0
    targets = torch.tensor([[1, 1, 0, 1], [1, 2, 2, 1]])
    assert float(METRICS["accuracy"](outputs, targets)) == 5 / 8
    assert float(METRICS["bits"](outputs, targets)) == pytest.approx(float(F.cross_entropy(outputs, targets)) / log(2))


def test_constant_targets_have_a_finite_r2():
    assert torch.isfinite(METRICS["r2"](torch.ones(3), torch.zeros(3)))


def test_outputs_are_never_broadcast():
    with pytest.raises(ValueError, match=r"outputs are \[3, 2\] and targets \[3\]; .* expect one shape; for classes"):
        METRICS["rmse"](torch.zeros(3, 2), torch.zeros(3))


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (F.cross_entropy, "accuracy"),
        (nn.CrossEntropyLoss(), "accuracy"),
        (F.mse_loss, "rmse"),
        (nn.L1Loss(), "mae"),
        (F.binary_cross_entropy_with_logits, "binary-accuracy"),
        (lambda outputs, targets: (outputs - targets).pow(4).mean(), "loss"),
    ],
)
def test_without_metrics_the_loss_decides(loss, name):
    (metric,) = find_metrics((), loss)
    assert metric.name == name


def test_the_loss_is_a_metric():
    (metric,) = find_metrics(["loss"], F.mse_loss)
    assert (metric.name, metric.higher_is_better) == ("loss", False)
    assert float(metric(torch.zeros(2), torch.tensor([1.0, 3.0]))) == 5.0


def test_one_may_stand_alone():
    assert [metric.name for metric in find_metrics("bits", F.cross_entropy)] == ["bits"]


def share(outputs, targets):
    return (outputs > targets).double().mean()


def test_ones_own_may_return_any_number():
    assert float(Metric("share", share, True)(torch.ones(4), torch.zeros(4))) == 1.0
    assert float(Metric("three", lambda outputs, targets: 3, False)(None, None)) == 3.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["acuracy"], r"there is no metric 'acuracy'; there are accuracy, .*; did you mean accuracy\?"),
        ([share], r"metrics has <function share .*>; expected a name .* or cdfl.Metric\('share', share, higher_is_bet"),
        (["mae", "mae"], "metrics are mae, mae; expected a different name for each"),
    ],
)
def test_mistakes(given, message):
    with pytest.raises(ValueError, match=message):
        find_metrics(given, F.mse_loss)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "a metric has the name ''; expected a word"),
        ({"function": 3}, r"the metric share has 3; expected a function of \(outputs, targets\)"),
        ({"higher_is_better": "yes"}, "higher_is_better='yes'; expected True or False"),
    ],
)
def test_a_metric_is_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        Metric(**{"name": "share", "function": share, "higher_is_better": True, **changes})


@pytest.mark.parametrize("name", ["accuracy", "top-5"])
def test_numbers_are_no_classes(name):
    with pytest.raises(ValueError, match="compares classes: use rmse, mae or r2 for numbers"):
        METRICS[name](torch.randn(4, 6), torch.randn(4))
