"""Metrics: how good a model is on held-out samples.

A metric has a name, a direction, and a function of (outputs, targets) that returns one number for all samples together.
So means, roots and ratios are those of a whole test set, never means over batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cdfl.argument_checks import did_you_mean

Score = Callable[[Any, Any], Any]  # (outputs, targets) -> one number


@dataclass(frozen=True)
class Metric:
    """A score of a model's outputs, and whether more of it is better.

    >>> Metric("mean error", lambda outputs, targets: (outputs - targets).abs().mean(), higher_is_better=False)
    Metric('mean error', lower is better)
    """

    name: str
    function: Score
    higher_is_better: bool

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a metric has the name {self.name!r}; expected a word")
        if not callable(self.function):
            raise ValueError(f"the metric {self.name} has {self.function!r}; expected a function of (outputs, targets)")
        if not isinstance(self.higher_is_better, bool):
            raise ValueError(
                f"the metric {self.name} has higher_is_better={self.higher_is_better!r}; expected True or False"
            )

    def __repr__(self) -> str:
        return f"Metric({self.name!r}, {'higher' if self.higher_is_better else 'lower'} is better)"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the score of the outputs as a float64 tensor without dimensions."""
        return torch.as_tensor(self.function(outputs, targets)).double()

    def to_jsonable(self) -> dict[str, object]:
        """Return what a run stores of it."""
        return {"name": self.name, "higher_is_better": self.higher_is_better}


def _accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    _check_classes("accuracy", targets)
    return (outputs.argmax(dim=1) == targets).double().mean()


def _top_5(outputs: Tensor, targets: Tensor) -> Tensor:
    _check_classes("top-5", targets)
    best = outputs.topk(min(5, outputs.shape[1]), dim=1).indices
    return (best == targets.unsqueeze(1)).any(dim=1).double().mean()


def _check_classes(name: str, targets: Tensor) -> None:
    if targets.is_floating_point():
        raise ValueError(f"targets are {targets.dtype}; {name} compares classes: use rmse, mae or r2 for numbers")


def _binary_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0.5)).double().mean()


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.double(), targets)


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.numel() != targets.numel():  # broadcasting would compare every output with every target
        raise ValueError(
            f"outputs are {list(outputs.shape)} and targets {list(targets.shape)}; rmse, mae and r2 compare numbers "
            "and expect one shape; for classes, use accuracy"
        )
    return outputs.double().reshape(targets.shape) - targets


def _r2(outputs: Tensor, targets: Tensor) -> Tensor:
    spread = (targets.double() - targets.double().mean()).square().mean()
    return 1 - _errors(outputs, targets).square().mean() / spread.clamp_min(1e-12)


ACCURACY = Metric("accuracy", _accuracy, higher_is_better=True)
RMSE = Metric("rmse", lambda outputs, targets: _errors(outputs, targets).square().mean().sqrt(), higher_is_better=False)
MAE = Metric("mae", lambda outputs, targets: _errors(outputs, targets).abs().mean(), higher_is_better=False)
BINARY_ACCURACY = Metric("binary-accuracy", _binary_accuracy, higher_is_better=True)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        ACCURACY,
        Metric("top-5", _top_5, higher_is_better=True),
        BINARY_ACCURACY,  # one output a sample, positive for yes
        Metric("perplexity", lambda outputs, targets: _cross_entropy(outputs, targets).exp(), higher_is_better=False),
        Metric("bits", lambda outputs, targets: _cross_entropy(outputs, targets) / log(2), higher_is_better=False),
        RMSE,
        MAE,
        Metric("r2", _r2, higher_is_better=True),
    )
}
_OF_LOSS: dict[Any, Metric] = {
    F.cross_entropy: ACCURACY,
    F.binary_cross_entropy_with_logits: BINARY_ACCURACY,
    F.mse_loss: RMSE,
    F.l1_loss: MAE,
    F.smooth_l1_loss: MAE,
    F.huber_loss: MAE,
}


def find_metrics(given: Sequence[str | Metric], loss: Score) -> tuple[Metric, ...]:
    """Return metrics by their names, or as they are; without any, the usual one for a loss.

    >>> find_metrics(["bits", "accuracy"], F.cross_entropy)
    (Metric('bits', lower is better), Metric('accuracy', higher is better))
    >>> find_metrics([], F.mse_loss)
    (Metric('rmse', lower is better),)
    """
    if isinstance(given, str | Metric):
        given = (given,)
    found = tuple(_find(metric, loss) for metric in given) or (_of_loss(loss),)
    names = [metric.name for metric in found]
    if len(set(names)) < len(names):
        raise ValueError(f"metrics are {', '.join(names)}; expected a different name for each")
    return found


def _of_loss(loss: Score) -> Metric:
    kinds = {torch.nn.CrossEntropyLoss: ACCURACY, torch.nn.MSELoss: RMSE, torch.nn.L1Loss: MAE}
    return kinds.get(type(loss)) or _OF_LOSS.get(loss) or Metric("loss", loss, higher_is_better=False)


def _find(metric: Any, loss: Score) -> Metric:
    if isinstance(metric, Metric):
        return metric
    if metric == "loss":
        return Metric("loss", loss, higher_is_better=False)
    if isinstance(metric, str):
        if metric not in METRICS:
            there = [*METRICS, "loss"]
            raise ValueError(
                f"there is no metric {metric!r}; there are {', '.join(there)}{did_you_mean(metric, there)}"
            )
        return METRICS[metric]
    own = getattr(metric, "__name__", "score")
    raise ValueError(
        f"metrics has {metric!r}; expected a name ({', '.join(METRICS)}, loss), or "
        f"cdfl.Metric({own!r}, {own}, higher_is_better=...)"
    )
