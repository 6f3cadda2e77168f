"""Apply a loss, which gives one number for a batch, to single samples and to many models at once."""

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cross_entropy

from cdfl.core.client import Loss


def row_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss (B,) of each row of outputs (B, n, ...) and targets (B, n, ...).

    A loss that vmap cannot take, e.g. one that branches on its values, is called once a row.

    >>> row_losses(torch.nn.functional.mse_loss, torch.zeros(2, 3), torch.tensor([[1.0, 1, 1], [2, 2, 2]]))
    tensor([1., 4.])
    """
    try:
        losses: Tensor = vmap(loss)(outputs, targets)
    except (RuntimeError, ValueError, NotImplementedError):
        losses = torch.stack([loss(row, own) for row, own in zip(outputs, targets, strict=True)])
    return losses


def each_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss (n,) of every sample alone."""
    if loss is cross_entropy and targets.ndim == 1:
        return cross_entropy(outputs, targets, reduction="none")
    return row_losses(loss, outputs[:, None], targets[:, None])
