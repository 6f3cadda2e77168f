"""Convolution, ReLU and 2x2 pooling of a stack of clients, forward and backward.

Images are (B, N, H, W, C), channels last and contiguous for each client. Filters come as copies in the order and type
in which they are multiplied: (B, OC, kh, kw, C) in the forward pass and (B, kh, kw, C, OC) in the backward pass.
`precision` says how operands are rounded; with "bf16" operands and results are bfloat16. Sums are float32.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from cdfl.sim.kernels.block_sizes import ceil_div, power_of_two, runs_triton

Precision = Literal["ieee", "tf32", "bf16"]
DEAD = 4  # marks a zero output of ReLU, which passes no gradient; the kernels use the literal 4


def conv_relu_pool(
    images: Tensor, filters: Tensor, bias: Tensor, precision: Precision = "tf32", active: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Apply `Conv2d` (stride 1, no padding), `ReLU` and `MaxPool2d(2)`, with filters and bias (B, OC) of each client.

    The first result is (B, N, (H-kh+1)//2, (W-kw+1)//2, OC). The second has the same shape and says from which corner
    of its pooling window, 0 to 3, each number came, or 4 where ReLU cut it off. The backward pass needs only that.
    Where `active` (B,) is false, a GPU skips the work and the results are undefined.

    >>> out, corner = conv_relu_pool(torch.rand(3, 5, 28, 28, 1), torch.rand(3, 32, 5, 5, 1), torch.rand(3, 32))
    >>> out.shape, corner.dtype
    (torch.Size([3, 5, 12, 12, 32]), torch.uint8)
    """
    if runs_triton(images, filters, bias):
        return launch_forward(images, filters, bias, precision, active)
    return conv_relu_pool_torch(images, filters, bias)


def conv_grad_weight(
    images: Tensor, grad: Tensor, corner: Tensor, grad_weight: Tensor, grad_bias: Tensor, precision: Precision = "tf32"
) -> None:
    """From the gradient of the pooled output, write the gradients of weights (B, OC, C, kh, kw) and biases (B, OC).

    Both may be views into a wider tensor. Weights may have fewer channels than the images, whose last are padding.
    """
    if runs_triton(images, grad):
        launch_grad_weight(images, grad, corner, grad_weight, grad_bias, precision)
    else:
        conv_grad_weight_torch(images, grad, corner, grad_weight, grad_bias)


def conv_grad_input(images: Tensor, grad: Tensor, corner: Tensor, filters: Tensor, precision: Precision) -> Tensor:
    """From the gradient of the pooled output, return the gradient of the images."""
    if runs_triton(images, grad, filters):
        return launch_grad_input(images, grad, corner, filters, precision)
    return conv_grad_input_torch(images, grad, corner, filters)


# -- plain PyTorch, one client after the other


def conv_relu_pool_torch(images: Tensor, filters: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """`conv_relu_pool` in PyTorch."""
    pooled, corners = [], []
    for x, weight, b in zip(_wide(images), _wide(filters), bias, strict=True):
        full = F.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), b)  # (N, OC, H', W')
        best, place = F.max_pool2d(full, 2, return_indices=True)
        row, column = place // full.shape[3], place % full.shape[3]
        pooled.append(best.relu())
        corners.append(torch.where(best <= 0, DEAD, row % 2 * 2 + column % 2))
    out, corner = (torch.stack(parts).permute(0, 1, 3, 4, 2).contiguous() for parts in (pooled, corners))
    return out.to(filters.dtype), corner.to(torch.uint8)


def conv_grad_weight_torch(
    images: Tensor, grad: Tensor, corner: Tensor, grad_weight: Tensor, grad_bias: Tensor
) -> None:
    """`conv_grad_weight` in PyTorch."""
    channels, (kh, kw) = grad_weight.shape[2], grad_weight.shape[3:]
    full = _before_pooling(grad, corner)  # (B, N, OC, H', W'), even
    grad_bias.copy_(full.sum((1, 3, 4)))
    reached = images[:, :, : full.shape[3] + kh - 1, : full.shape[4] + kw - 1, :channels]
    for x, g, result in zip(_wide(reached), full, grad_weight, strict=True):
        result.copy_(conv2d_weight(x.permute(0, 3, 1, 2), list(result.shape), g))


def conv_grad_input_torch(images: Tensor, grad: Tensor, corner: Tensor, filters: Tensor) -> Tensor:
    """`conv_grad_input` in PyTorch."""
    result = torch.zeros_like(images, memory_format=torch.contiguous_format)
    for target, g, weight in zip(result, _before_pooling(grad, corner), _wide(filters), strict=True):
        found = F.conv_transpose2d(g, weight.permute(3, 2, 0, 1)).permute(
            0, 2, 3, 1
        )  # (N, H, W, C), without an odd last row or column
        target[:, : found.shape[1], : found.shape[2]] = found
    return result


def _before_pooling(grad: Tensor, corner: Tensor) -> Tensor:
    """Return the gradient of the convolution's output (B, N, OC, H', W'): each number goes to its corner."""
    B, N, HP, WP, OC = grad.shape
    four = torch.stack([torch.where(corner == i, _wide(grad), 0.0) for i in range(4)])  # (4, B, N, HP, WP, OC)
    return four.view(2, 2, B, N, HP, WP, OC).permute(2, 3, 6, 4, 0, 5, 1).reshape(B, N, OC, 2 * HP, 2 * WP)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


# -- Triton


def launch_forward(
    images: Tensor, filters: Tensor, bias: Tensor, precision: Precision, active: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Launch the kernel of `conv_relu_pool`."""
    from cdfl.sim.kernels import conv_triton  # lazily: importing Triton is slow, and CPUs do not need it

    B, N, H, W, C = images.shape
    OC, KH, KW = filters.shape[1:4]
    HP, WP = (H - KH + 1) // 2, (W - KW + 1) // 2
    out = images.new_empty((B, N, HP, WP, OC), dtype=filters.dtype)
    corner = images.new_empty((B, N, HP, WP, OC), dtype=torch.uint8)
    windows = N * HP * WP
    options = forward_options(C, OC, precision)
    grid = (ceil_div(windows, options["BLOCK_M"]), ceil_div(OC, options["BLOCK_O"]), B)
    kernel: Any = conv_triton.forward_kernel
    kernel[grid](
        images, filters, bias, out, corner, corner if active is None else active,
        images.stride(0), filters.stride(0), bias.stride(0), windows,
        C=C, H=H, W=W, OC=OC, KH=KH, KW=KW, ALL=active is None, PRECISION=_dot_precision(precision), **options,
    )  # fmt: skip
    return out, corner


def launch_grad_weight(
    images: Tensor, grad: Tensor, corner: Tensor, grad_weight: Tensor, grad_bias: Tensor, precision: Precision
) -> None:
    """Launch the kernels of `conv_grad_weight`."""
    from cdfl.sim.kernels import conv_triton

    B, _, H, W, C = images.shape
    OC, KH, KW = grad.shape[4], *grad_weight.shape[3:]
    K = KH * KW * C
    windows = corner[0].numel() // OC
    options = grad_weight_options(C, OC, precision)
    share = options.pop("share")
    splits = ceil_div(windows, share)
    partial = images.new_empty((splits, B, OC, K + 1), dtype=torch.float32)
    grid = (ceil_div(K, options["BLOCK_K"]) * ceil_div(OC, options["BLOCK_O"]), splits, B)
    kernel: Any = conv_triton.grad_weight_kernel
    kernel[grid](
        images, grad, corner, partial, images.stride(0), windows, share,
        C=C, H=H, W=W, OC=OC, KH=KH, KW=KW, PRECISION=precision, **options,
    )  # fmt: skip
    reduce: Any = conv_triton.reduce_kernel
    block = 512
    reduce[(ceil_div(OC * (K + 1), block), B)](
        partial, grad_weight, grad_bias, grad_weight.stride(0), grad_bias.stride(0), splits,
        C=C, KEPT=grad_weight.shape[2], OC=OC, TAPS=KH * KW, BLOCK=block,
    )  # fmt: skip


def launch_grad_input(images: Tensor, grad: Tensor, corner: Tensor, filters: Tensor, precision: Precision) -> Tensor:
    """Launch the kernel of `conv_grad_input`."""
    from cdfl.sim.kernels import conv_triton

    B, N, H, W, C = images.shape
    KH, KW, OC = filters.shape[1], filters.shape[2], filters.shape[4]
    grad_x = torch.empty_like(images, memory_format=torch.contiguous_format)
    options = grad_input_options(C, OC, precision)
    squares = ceil_div(H, 2) * ceil_div(W, 2)
    grid = (ceil_div(N, options["BLOCK_N"]), B, squares * ceil_div(4 * C, options["BLOCK_C"]))
    kernel: Any = conv_triton.grad_input_kernel
    kernel[grid](
        grad, corner, filters, grad_x, filters.stride(0), N,
        C=C, H=H, W=W, OC=OC, KH=KH, KW=KW, PRECISION=_dot_precision(precision), **options,
    )  # fmt: skip
    return grad_x


# Block sizes, timed with the paper's CNN on an H200. They must not depend on the number of clients, so that a client's
# result does not depend on the rest of its stack. "ieee" does not use the matrix unit and needs small blocks.


def forward_options(C: int, OC: int, precision: Precision) -> dict[str, int]:
    """Return the block sizes of the forward kernel, and how it reads images."""
    block_o = power_of_two(OC, 16, 64)
    blocks = {"BLOCK_M": 128, "BLOCK_K": 32, "BLOCK_O": min(block_o, 32), "num_warps": 4, "num_stages": 1}
    blocks |= {"BY_PATCH": False}
    if precision == "ieee":
        return blocks | {"BLOCK_M": 32, "BLOCK_K": 16, "num_stages": 2}
    if C == 1:  # few weights: one iteration, so there is nothing to prefetch
        return blocks | {"BLOCK_M": 32, "num_warps": 2}
    if C <= 4 and precision == "bf16":
        return blocks | {"BY_PATCH": True, "BLOCK_K": 16, "num_stages": 3}
    if C < 16:
        return blocks
    return blocks | {"BLOCK_M": 64, "BLOCK_O": block_o, "num_stages": 3 if precision == "bf16" else 2}


def grad_weight_options(C: int, OC: int, precision: Precision) -> dict[str, int]:
    """Return the block sizes of the weights' gradient, its orientation, and `share`: the windows in one sum."""
    block_o = power_of_two(OC, 16, 64)
    blocks = {"BLOCK_M": 32, "BLOCK_K": 128, "BLOCK_O": block_o, "num_warps": 4, "num_stages": 2, "share": 512}
    blocks |= {"TRANSPOSED": False}
    if precision == "ieee":
        return blocks | {"BLOCK_M": 16, "BLOCK_K": 32, "BLOCK_O": min(block_o, 32)}
    if C <= 3:
        return blocks | {"BLOCK_K": 32, "BLOCK_O": min(block_o, 32), "num_warps": 2, "share": 576}
    if C < 16:
        return blocks | {"BLOCK_O": min(block_o, 32), "num_stages": 1, "TRANSPOSED": True}
    return blocks | ({"BLOCK_M": 16, "num_stages": 3} if precision == "bf16" else {"num_stages": 1})


def grad_input_options(C: int, OC: int, precision: Precision) -> dict[str, int]:
    """Return the block sizes of the input's gradient."""
    block_c = power_of_two(4 * C, 16, 128)
    if precision == "ieee":
        return {"BLOCK_N": 32, "BLOCK_O": 16, "BLOCK_C": min(block_c, 64), "num_warps": 4, "num_stages": 2}
    if precision == "bf16":
        block_o = power_of_two(OC, 16, 64)
        return {"BLOCK_N": 64, "BLOCK_O": block_o, "BLOCK_C": block_c, "num_warps": 4, "num_stages": 1}
    return {"BLOCK_N": 128, "BLOCK_O": 16, "BLOCK_C": block_c, "num_warps": 8, "num_stages": 3}


def _dot_precision(precision: Precision) -> str:
    return "ieee" if precision == "ieee" else "tf32"
