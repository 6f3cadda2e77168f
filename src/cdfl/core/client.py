"""The local training of Client() in Algorithm 1. The loop around it and the upload are the caller's."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

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
    optimizer = make_optimizer(trained, settings)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        for parameter, anchor in zip(trained, anchors, strict=True):
            if parameter.grad is None:  # the loss does not depend on it, but the proximal term does
                parameter.grad = torch.zeros_like(parameter)
            if settings.proximal_strength:  # add the gradient of rho/2 ||v - u||^2 without autograd
                parameter.grad.add_(parameter.detach() - anchor, alpha=settings.proximal_strength)
        optimizer.step()
    return flatten(model)


def make_optimizer(parameters: Iterable[nn.Parameter], settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return the optimiser that `settings` names, with L2 weight decay as in the paper."""
    parameters = list(parameters)
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)  # one pass over the weights
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=fused)
    return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, momentum=settings.momentum, fused=fused)
