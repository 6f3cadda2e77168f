"""Gather the next batch of every client, and its weights in the order of the kernels."""

from typing import Any

import torch
from torch import Tensor

from cdfl.sim.kernels.block_sizes import ceil_div, power_of_two, runs_triton


def take_batch(
    images: Tensor, targets: Tensor, plans: Tensor, step: Tensor, limits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each client's next inputs (B, batch, H, W, C) and targets (B, batch), and if it has steps left, (B,).

    Takes images (B, n, H, W, C), targets (B, n), plans (B, steps, batch) with positions among n, step (B,) with the
    steps taken so far, and limits (B,) with all steps to take. A client past its plan gets its last batch. All tensors
    are contiguous.

    >>> plans = torch.tensor([[[0, 2], [1, 1]]])
    >>> images, targets = torch.arange(3.0).view(1, 3, 1, 1, 1), torch.tensor([[7, 8, 9]])
    >>> inputs, chosen, active = take_batch(images, targets, plans, torch.tensor([1]), torch.tensor([2]))
    >>> inputs.flatten().tolist(), chosen.tolist(), active.tolist()
    ([1.0, 1.0], [[8, 8]], [True])
    """
    if runs_triton(images):
        return launch_take_batch(images, targets, plans, step, limits)
    return take_batch_torch(images, targets, plans, step, limits)


def take_batch_torch(
    images: Tensor, targets: Tensor, plans: Tensor, step: Tensor, limits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`take_batch` in PyTorch."""
    rows = torch.arange(len(step), device=step.device)
    chosen = plans[rows, step.clamp(max=plans.shape[1] - 1)]  # (B, batch)
    return images[rows[:, None], chosen], targets[rows[:, None], chosen], step < limits


def launch_take_batch(
    images: Tensor, targets: Tensor, plans: Tensor, step: Tensor, limits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the kernel of `take_batch`."""
    from cdfl.sim.kernels import gather_triton  # lazily: importing Triton is slow, and CPUs do not need it

    (B, samples), (steps, batch), size = targets.shape, plans.shape[1:], images[0, 0].numel()
    inputs = images.new_empty(B, batch, *images.shape[2:])
    chosen = targets.new_empty(B, batch)
    active = torch.empty(B, dtype=torch.bool, device=step.device)
    kernel: Any = gather_triton.batch_kernel
    kernel[(batch, B)](
        images, targets, plans, step, limits, inputs, chosen, active, samples, steps, batch, size,
        BLOCK=power_of_two(size, 32, 1024),
    )  # fmt: skip
    return inputs, chosen, active


def take_columns(models: Tensor, source: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the columns `source` (Q,) int32 of models (B, P) as `dtype`; zeros where `source` is negative.

    >>> take_columns(torch.tensor([[5.0, 6.0, 7.0]]), torch.tensor([2, -1, 0], dtype=torch.int32), torch.float32)
    tensor([[7., 0., 5.]])
    """
    if runs_triton(models):
        return launch_take_columns(models, source, dtype)
    return take_columns_torch(models, source, dtype)


def take_columns_torch(models: Tensor, source: Tensor, dtype: torch.dtype) -> Tensor:
    """`take_columns` in PyTorch."""
    return models[:, source.clamp(min=0)].masked_fill(source < 0, 0.0).to(dtype)


def launch_take_columns(models: Tensor, source: Tensor, dtype: torch.dtype) -> Tensor:
    """Launch the kernel of `take_columns`."""
    from cdfl.sim.kernels import gather_triton

    B, Q, block = len(models), len(source), 1024
    out = models.new_empty(B, Q, dtype=dtype)
    kernel: Any = gather_triton.columns_kernel
    kernel[(ceil_div(Q, block), B)](models, source, out, models.stride(0), Q, BLOCK=block)
    return out
