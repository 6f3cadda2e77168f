"""The cross-entropy of a stack of clients, and its gradient."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cdfl.sim.kernels.block_sizes import power_of_two, runs_triton


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy (B,) of each client: logits (B, N, classes), targets (B, N) int64.

    Negative targets are ignored, so that clients with fewer samples can be padded. A client without samples has loss 0.
    On a GPU the gradient is computed in the same pass. Samples with several places have logits (B, N, classes, ...) and
    targets (B, N, ...), as in PyTorch.

    >>> cross_entropy(torch.zeros(2, 3, 10), torch.tensor([[0, 1, 2], [3, -1, -1]]))
    tensor([2.3026, 2.3026])
    """
    if targets.ndim > 2:
        logits, targets = logits.movedim(2, -1).flatten(1, -2), targets.flatten(1)
    if runs_triton(logits):
        return CrossEntropy.apply(logits, targets)  # type: ignore[no-any-return, no-untyped-call]
    return cross_entropy_torch(logits, targets)


def cross_entropy_torch(logits: Tensor, targets: Tensor) -> Tensor:
    """`cross_entropy` in PyTorch."""
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    logits = logits.masked_fill((targets < 0)[:, :, None], 0.0)  # padding may hold NaN
    losses = F.cross_entropy(logits.flatten(0, 1), targets.clamp(min=-1).flatten(), reduction="none", ignore_index=-1)
    return losses.view(targets.shape).sum(1) / (targets >= 0).sum(1).clamp(min=1)


def cross_entropy_grad(sums: Tensor, bias: Tensor, targets: Tensor, grad_bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of `cross_entropy(sums + bias, targets)` for sums (B, N, classes), as `dtype`.

    Writes the gradient of bias (B, classes) into `grad_bias`; both may be views into wider tensors.
    """
    if runs_triton(sums, bias):
        return launch_cross_entropy(sums, targets, bias, grad_bias, dtype)[1]
    with torch.enable_grad():
        logits = (sums + bias[:, None]).detach().requires_grad_()
        (grad,) = torch.autograd.grad(cross_entropy_torch(logits, targets).sum(), logits)
    grad_bias.copy_(grad.sum(1))
    return grad.to(dtype)


class CrossEntropy(torch.autograd.Function):
    """The Triton kernel as a differentiable operation."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the losses, and keep their gradient."""
        losses, grad = launch_cross_entropy(logits.contiguous(), targets.contiguous(), dtype=logits.dtype)
        ctx.save_for_backward(grad)
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """Return the kept gradient, scaled."""
        (grad,) = ctx.saved_tensors
        return (grad * upstream[:, None, None]).to(grad.dtype), None


def launch_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    grad_bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; return the losses (B,) and the gradient of the logits before the bias."""
    from cdfl.sim.kernels import loss_triton  # lazily: importing Triton is slow, and CPUs do not need it

    B, N, classes = logits.shape
    losses = logits.new_empty(B, dtype=torch.float32)
    grad = torch.empty_like(logits, dtype=dtype)
    kernel: Any = loss_triton.cross_entropy_kernel
    block_c = power_of_two(classes, 2, 1 << 16)
    block_n = power_of_two(N, 1, max(1, 4096 // block_c))
    kernel[(B,)](
        logits, targets, losses if bias is None else bias, losses, grad, losses if grad_bias is None else grad_bias,
        0 if bias is None else bias.stride(0), 0 if grad_bias is None else grad_bias.stride(0), N, classes,
        BIAS=bias is not None, BLOCK_N=block_n, BLOCK_C=block_c,
    )  # fmt: skip
    return losses, grad
