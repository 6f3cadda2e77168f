"""The local training of Client() in Algorithm 1. The loop around it and the upload are the caller's."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from cdfl.core.flat import flatten, load
from cdfl.core.settings import TrainingSettings

Loss = Callable[[Any, Any], Tensor]


def client_update(
    model: nn.Module,
    personal_model: Tensor,
    batches: Iterable[tuple[Any, Any]],
    loss: Loss,
    settings: TrainingSettings,
) -> Tensor:
    """Train from `personal_model` u (P,) over `batches` of (inputs, targets); return `local_model` v (P,).

    Minimises J(v; u) = loss + rho/2 ||v - u||^2 with one optimiser step for each batch: Algorithm 1 prints gradient
    steps, appendix A says mini-batches and Adam or SGD. `model` gives the architecture; neither it nor `personal_model`
    changes. The caller chooses the batches, their order and the number of passes.

    >>> _ = torch.manual_seed(0)
    >>> net, x, y = nn.Linear(2, 2), torch.randn(8, 2), torch.arange(8) % 2
    >>> start = flatten(net)
    >>> trained = client_update(net, start, [(x, y)] * 20, nn.functional.cross_entropy, TrainingSettings())
    >>> load(net, trained)
    """
    model = copy.deepcopy(model)
    model.train()
    load(model, personal_model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    anchors = [parameter.detach().clone() for parameter in trained]  # u
    optimizer = Optimizer(trained, settings)
    for inputs, targets in batches:
        optimizer.forget_gradients()
        loss(model(inputs), targets).backward()
        for parameter, anchor in zip(trained, anchors, strict=True):
            if parameter.grad is None:  # the loss does not depend on it, but the proximal term does
                parameter.grad = torch.zeros_like(parameter)
            if settings.proximal_strength:  # add the gradient of rho/2 ||v - u||^2 without autograd
                parameter.grad.add_(parameter.detach() - anchor, alpha=settings.proximal_strength)
        optimizer.step()
    return flatten(model)


class Optimizer:
    """The optimiser that `settings` names, with L2 weight decay as in the paper: the steps of `torch.optim`.

    Its classes import torch's compiler when the first one is made, which takes more than a second of a process, and
    spend more on a step than the step of a small model costs.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], settings: TrainingSettings) -> None:
        self.parameters: list[Any] = list(parameters)
        self.settings = settings
        self._is_fused = all(parameter.device.type in ("cpu", "cuda") for parameter in self.parameters)  # one pass
        averaged = self.parameters if settings.optimizer == "adam" else []
        self._averages = [torch.zeros_like(parameter) for parameter in averaged]
        self._squares = [torch.zeros_like(parameter) for parameter in averaged]
        self._steps = [torch.zeros((), device=parameter.device, dtype=torch.float32) for parameter in averaged]
        self._momenta: list[Any] = [None for _ in self.parameters]

    def forget_gradients(self) -> None:
        """Begin a new batch."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters along their gradients."""
        gradients = [parameter.grad for parameter in self.parameters]
        options: dict[str, Any] = {"lr": self.settings.learning_rate, "weight_decay": self.settings.weight_decay}
        options |= {"fused": self._is_fused, "maximize": False}
        if self.settings.optimizer == "adam":
            options |= {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
            adam(self.parameters, gradients, self._averages, self._squares, [], self._steps, **options)
        else:
            options |= {"momentum": self.settings.momentum, "dampening": 0.0, "nesterov": False}
            sgd(self.parameters, gradients, self._momenta, **options)
