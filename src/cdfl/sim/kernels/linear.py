"""Linear layers of a stack of clients: matrix products, and bias and ReLU in one pass."""

from typing import Any

import torch
from torch import Tensor

from cdfl.sim.kernels.block_sizes import ceil_div, runs_triton


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of each client's two matrices; products of bfloat16 are summed and returned in float32.

    `out` may be a view into a wider tensor.
    """
    if a.dtype != torch.bfloat16:
        return torch.bmm(a, b, out=out)
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32, out=out)
    return torch.bmm(a.float(), b.float(), out=out)


def bias_relu(sums: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the ReLU of sums (B, N, F) plus bias (B, F), as `dtype`.

    >>> bias_relu(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[-3.0, 3.0]]), torch.float32)
    tensor([[[0., 5.]]])
    """
    if runs_triton(sums, bias):
        return launch_bias_relu(sums, bias, dtype)
    return (sums + bias[:, None]).relu().to(dtype)


def bias_relu_grad(grad: Tensor, out: Tensor, grad_bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of the sums as `dtype`, and write that of the bias; `out` is what `bias_relu` returned."""
    if runs_triton(grad, out, grad_bias):
        return launch_bias_relu_grad(grad, out, grad_bias, dtype)
    grad = torch.where(out <= 0, 0.0, grad)
    grad_bias.copy_(grad.sum(1))
    return grad.to(dtype)


def launch_bias_relu(sums: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Launch the kernel of `bias_relu`."""
    from cdfl.sim.kernels import linear_triton  # lazily: importing Triton is slow, and CPUs do not need it

    B, N, F = sums.shape
    out, block = torch.empty_like(sums, dtype=dtype), 1024
    kernel: Any = linear_triton.bias_relu_kernel
    kernel[(ceil_div(N * F, block), B)](sums, bias, out, bias.stride(0), N * F, F, BLOCK=block)
    return out


def launch_bias_relu_grad(grad: Tensor, out: Tensor, grad_bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Launch the kernel of `bias_relu_grad`."""
    from cdfl.sim.kernels import linear_triton

    B, N, F = grad.shape
    passed, block_f = torch.empty_like(grad, dtype=dtype), 32
    kernel: Any = linear_triton.bias_relu_grad_kernel
    kernel[(ceil_div(F, block_f), B)](
        grad, out, passed, grad_bias, grad_bias.stride(0), N, F, BLOCK_N=64, BLOCK_F=block_f
    )
    return passed
