"""Batch norm of one client's images, with the sum and the ReLU that follow it, forward and backward.

Images are (N, C, H, W), channels last in memory. Numbers are read and written in the type of the images; sums are
float32.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cdfl.sim.kernels.block_sizes import ceil_div, power_of_two, runs_triton

PROGRAMS = 512  # about so many parts of a column sum: enough for a GPU, few enough to be added by one program
BLOCK = 2048  # numbers of a program that does not sum


def norm_relu(
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    added: Tensor | None = None,
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    relu: bool = True,
) -> Tensor:
    """Return relu(batch_norm(images) + added), as `nn.BatchNorm2d` with these parameters and running statistics.

    In training, the running statistics change in place.

    >>> images, one, zero = torch.tensor([[[[1.0]]], [[[3.0]]]]), torch.ones(1), torch.zeros(1)
    >>> norm_relu(images, one, zero, zero.clone(), one.clone(), training=True).flatten()
    tensor([0.0000, 1.0000])
    """
    if not runs_triton(images, weight):
        return norm_relu_torch(
            images, weight, bias, mean, variance, added, training=training, momentum=momentum, eps=eps, relu=relu
        )
    images = images.contiguous(memory_format=torch.channels_last)
    added = None if added is None else added.contiguous(memory_format=torch.channels_last)
    if training:
        found: Tensor = _NormRelu.apply(  # type: ignore[no-untyped-call]
            images, weight, bias, mean, variance, added, momentum, eps, relu
        )
        return found
    return launch_forward(images, weight, bias, added, (mean, variance, eps), relu=relu)


def norm_relu_torch(
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    added: Tensor | None = None,
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    relu: bool = True,
) -> Tensor:
    """`norm_relu` in PyTorch."""
    found = F.batch_norm(images, mean, variance, weight, bias, training, momentum, eps)
    found = found if added is None else found + added
    return F.relu(found) if relu else found


class _NormRelu(torch.autograd.Function):
    """`norm_relu` in training, by Triton's kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        added: Tensor | None,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        scale, shift, moments = launch_statistics(images, weight, bias, mean, variance, momentum, eps)
        out = launch_forward(images, scale, shift, added, relu=relu)
        ctx.save_for_backward(images, out, weight, moments)
        ctx.relu, ctx.is_added = relu, added is not None
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        images, out, weight, moments = ctx.saved_tensors
        grad = upstream[0].contiguous(memory_format=torch.channels_last)
        grad_images, grad_weight, grad_bias, grad_added = launch_backward(
            images, out, grad, weight, moments, relu=ctx.relu, is_added=ctx.is_added
        )
        return grad_images, grad_weight, grad_bias, None, None, grad_added, None, None, None


# -- Triton


def launch_statistics(
    images: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scale and shift (C,) of the norm, and mean and 1 / deviation (2, C); update the running statistics."""
    from cdfl.sim.kernels import norm_triton  # lazily: importing Triton is slow, and CPUs do not need it

    C, rows = images.shape[1], images.numel() // images.shape[1]
    partial = _column_sums(images, None, None)
    scale, shift = torch.empty_like(weight), torch.empty_like(bias)
    moments = weight.new_empty(2, C)
    kernel: Any = norm_triton.moments_kernel
    kernel[(ceil_div(C, 32),)](
        partial, weight, bias, mean, variance, scale, shift, moments, rows, len(partial), momentum, eps,
        C=C, BLOCK_S=64, BLOCK_C=32,
    )  # fmt: skip
    return scale, shift, moments


def launch_forward(
    images: Tensor,
    scale: Tensor,
    shift: Tensor,
    added: Tensor | None,
    moments: tuple[Tensor, Tensor, float] | None = None,
    *,
    relu: bool,
) -> Tensor:
    """Launch the kernel of relu(images * scale + shift + added).

    With `moments` (mean, variance, eps), the images are normalised first.
    """
    from cdfl.sim.kernels import norm_triton

    out = torch.empty_like(images)
    mean, variance, eps = moments or (scale, scale, 0.0)
    kernel: Any = norm_triton.forward_kernel
    kernel[(ceil_div(images.numel(), BLOCK),)](
        images, images if added is None else added, scale, shift, mean, variance, out, images.numel(), eps,
        C=images.shape[1], NORMALISE=moments is not None, ADDED=added is not None, RELU=relu, BLOCK=BLOCK,
    )  # fmt: skip
    return out


def launch_backward(
    images: Tensor, out: Tensor, grad: Tensor, weight: Tensor, moments: Tensor, *, relu: bool, is_added: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of images, weight and bias, and of what was added."""
    from cdfl.sim.kernels import norm_triton

    C, rows = images.shape[1], images.numel() // images.shape[1]
    partial = _column_sums(images, grad, out if relu else None)
    grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(weight)
    factors = weight.new_empty(3, C)
    kernel: Any = norm_triton.factors_kernel
    kernel[(ceil_div(C, 32),)](
        partial, weight, moments, grad_weight, grad_bias, factors, rows, len(partial),
        C=C, BLOCK_S=64, BLOCK_C=32,
    )  # fmt: skip
    grad_images = torch.empty_like(images)
    grad_added = torch.empty_like(images) if is_added and relu else grad if is_added else None
    kernel = norm_triton.backward_kernel
    kernel[(ceil_div(images.numel(), BLOCK),)](
        images, out, grad, factors, grad_images, grad_images if grad_added is None else grad_added, images.numel(),
        C=C, ADDED=is_added and relu, RELU=relu, BLOCK=BLOCK,
    )  # fmt: skip
    return grad_images, grad_weight, grad_bias, grad_added


def _column_sums(images: Tensor, grad: Tensor | None, out: Tensor | None) -> Tensor:
    """Return parts of sums over all pixels, (splits, 2, C): of the images and their squares.

    With `grad`: of the gradient, where ReLU passed it (`out` > 0), and of its product with the images.
    """
    from cdfl.sim.kernels import norm_triton

    C, rows = images.shape[1], images.numel() // images.shape[1]
    block_c = power_of_two(C, 16, 64)
    columns, block_m = ceil_div(C, block_c), 32
    share = ceil_div(ceil_div(rows, max(1, PROGRAMS // columns)), block_m) * block_m
    splits = ceil_div(rows, share)
    partial = images.new_empty((splits, 2, C), dtype=torch.float32)
    kernel: Any = norm_triton.sums_kernel
    kernel[(columns, splits)](
        images, images if grad is None else grad, images if out is None else out, partial, rows, share,
        C=C, BACKWARD=grad is not None, RELU=out is not None, BLOCK_M=block_m, BLOCK_C=block_c,
    )  # fmt: skip
    return partial
