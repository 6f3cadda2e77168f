from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cdfl.sim.kernels.device import ceil_div, power_of_two, runs_triton

Precision = Literal["ieee", "tf32", "bf16"]


def conv_relu_pool(
    x: Tensor, weight: Tensor, bias: Tensor, precision: Precision = "tf32", active: Tensor | None = None
) -> Tensor:
    """`Conv2d` (stride 1, no padding), `ReLU` and `MaxPool2d(2)` for a stack of clients, each with its own filters.

    x (B, N, C, H, W), weight (B, OC, C, kh, kw), bias (B, OC); the result is (B, N, OC, (H-kh+1)//2, (W-kw+1)//2).
    Weights and biases may be views into a wider tensor; x may be one batch expanded over all clients.
    On a GPU images are read and written channels-last (a `permute` of contiguous (B, N, H, W, C)): any other layout
    of x is copied first.

    precision says how operands are rounded before they are multiplied; sums are float32 always. "bf16" also returns
    bfloat16, which the next layer reads at half the cost; gradients of weights and biases stay float32. A CPU has no
    "tf32" and computes in full precision.

    Where `active` (B,) is false a GPU may leave anything in the result, in no time. There is no gradient then.

    >>> conv_relu_pool(torch.rand(3, 5, 1, 28, 28), torch.rand(3, 32, 1, 5, 5), torch.rand(3, 32)).shape
    torch.Size([3, 5, 32, 12, 12])
    """
    _check(x, weight, bias, precision)
    if runs_triton(x, weight, bias):
        if active is not None:
            out, _ = _forward(_channels_last(x), weight, bias, precision, active)
            return out.permute(0, 1, 4, 2, 3)
        return ConvReluPool.apply(x, weight, bias, precision)  # type: ignore[no-any-return, no-untyped-call]
    return conv_relu_pool_torch(x, weight, bias, precision)


def conv_relu_pool_torch(x: Tensor, weight: Tensor, bias: Tensor, precision: Precision = "tf32") -> Tensor:
    """The same in plain PyTorch, one client after the other: the reference, and the fastest way on a CPU."""
    if precision == "bf16":
        x, weight, bias = x.bfloat16(), weight.bfloat16(), bias.bfloat16()
    # unbind, not indexing: its gradient is one stack, where each index would fill a zero tensor for all clients
    clients = zip(x.unbind(), weight.unbind(), bias.unbind(), strict=True)
    return torch.stack([F.max_pool2d(F.relu(F.conv2d(images, w, b)), 2) for images, w, b in clients])


class ConvReluPool(torch.autograd.Function):
    """The Triton kernels as one differentiable operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, precision: Precision) -> Tensor:
        """Pooled output; keeps the input and, as one byte for each output, the corner it came from."""
        images = _channels_last(x)  # (B, N, H, W, C)
        out, corner = _forward(images, weight, bias, precision)
        ctx.save_for_backward(images, weight, corner)
        ctx.precision = precision
        return out.permute(0, 1, 4, 2, 3)  # (B, N, OC, HP, WP), channels-last in memory

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Gradients of those inputs that want one."""
        images, weight, corner = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad = grad.permute(0, 1, 3, 4, 2).contiguous()  # (B, N, HP, WP, OC)
        grad_x = grad_weight = grad_bias = None
        if wants_weight or wants_bias:
            grad_weight, grad_bias = _grad_weight(images, grad, corner, weight, ctx.precision)
        if wants_x:
            grad_x = _grad_input(images, grad, corner, weight, ctx.precision).permute(0, 1, 4, 2, 3)
        return grad_x, grad_weight if wants_weight else None, grad_bias if wants_bias else None, None


def _forward(
    images: Tensor, weight: Tensor, bias: Tensor, precision: Precision, active: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    from cdfl.sim.kernels import conv_triton  # importing Triton takes a while, and CPUs need none

    B, N, H, W, C = images.shape
    OC, KH, KW = weight.shape[1], weight.shape[3], weight.shape[4]
    HP, WP = (H - KH + 1) // 2, (W - KW + 1) // 2
    filters = _operand(weight.permute(0, 1, 3, 4, 2), precision)  # (B, OC, kh, kw, C)
    out = images.new_empty((B, N, HP, WP, OC), dtype=filters.dtype)
    corner = images.new_empty((B, N, HP, WP, OC), dtype=torch.uint8)
    windows = N * HP * WP
    bias = bias if bias.stride(1) == 1 else bias.contiguous()
    options = forward_options(C, OC, KH * KW, precision)
    grid = (ceil_div(windows, options["BLOCK_M"]), ceil_div(OC, options["BLOCK_O"]), B)
    kernel: Any = conv_triton.forward_kernel
    kernel[grid](
        images, filters, bias, out, corner, corner if active is None else active.to(torch.int32),
        images.stride(0), bias.stride(0), windows,
        C=C, H=H, W=W, OC=OC, KH=KH, KW=KW, ALL=active is None, PRECISION=_dot_precision(precision), **options,
    )  # fmt: skip
    return out, corner


def _grad_weight(
    images: Tensor, grad: Tensor, corner: Tensor, weight: Tensor, precision: Precision
) -> tuple[Tensor, Tensor]:
    from cdfl.sim.kernels import conv_triton

    B, _, H, W, C = images.shape
    OC, KH, KW = weight.shape[1], weight.shape[3], weight.shape[4]
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
    grad_weight = images.new_empty((B, OC, C, KH, KW), dtype=torch.float32)
    grad_bias = images.new_empty((B, OC), dtype=torch.float32)
    reduce: Any = conv_triton.reduce_kernel
    block = 512
    reduce[(ceil_div(OC * (K + 1), block), B)](
        partial, grad_weight, grad_bias, splits, C=C, OC=OC, TAPS=KH * KW, BLOCK=block
    )
    return grad_weight, grad_bias


def _grad_input(images: Tensor, grad: Tensor, corner: Tensor, weight: Tensor, precision: Precision) -> Tensor:
    from cdfl.sim.kernels import conv_triton

    B, N, H, W, C = images.shape
    OC, KH, KW = weight.shape[1], weight.shape[3], weight.shape[4]
    filters = _operand(weight.permute(0, 3, 4, 2, 1), precision)  # (B, kh, kw, C, OC)
    grad_x = torch.empty_like(images, memory_format=torch.contiguous_format)
    options = grad_input_options(C, OC, precision)
    squares = ceil_div(H, 2) * ceil_div(W, 2)
    grid = (ceil_div(N, options["BLOCK_N"]), B, squares * ceil_div(4 * C, options["BLOCK_C"]))
    kernel: Any = conv_triton.grad_input_kernel
    kernel[grid](
        grad, corner, filters, grad_x, N,
        C=C, H=H, W=W, OC=OC, KH=KH, KW=KW, PRECISION=_dot_precision(precision), **options,
    )  # fmt: skip
    return grad_x


# Block sizes, timed with the paper's CNN on an H200. They must not depend on the number of clients: then a client's
# result does not depend on whom it is stacked with. "ieee" multiplies without the matrix unit and wants small blocks.


def forward_options(C: int, OC: int, taps: int, precision: Precision) -> dict[str, int]:
    """Blocks of the forward kernel."""
    block_o = power_of_two(OC, 16, 64)
    if precision == "ieee":
        return {"BLOCK_M": 32, "BLOCK_K": 16, "BLOCK_O": min(block_o, 32), "num_warps": 4, "num_stages": 2}
    if C <= 3:  # few weights: one round, in which there is nothing to load ahead
        block_m, block_k = 128 if C == 1 else 64, power_of_two(taps * C, 16, 32)
        return {"BLOCK_M": block_m, "BLOCK_K": block_k, "BLOCK_O": min(block_o, 32), "num_warps": 4, "num_stages": 1}
    stages = 3 if precision == "bf16" else 2
    return {"BLOCK_M": 64, "BLOCK_K": 32, "BLOCK_O": block_o, "num_warps": 4, "num_stages": stages}


def grad_weight_options(C: int, OC: int, precision: Precision) -> dict[str, int]:
    """Blocks of the weights' gradient, and `share`: the windows that one program adds up."""
    block_o = power_of_two(OC, 16, 64)
    if precision == "ieee":
        blocks = {"BLOCK_M": 16, "BLOCK_K": 32, "BLOCK_O": min(block_o, 32), "num_stages": 2, "share": 512}
    elif C <= 3:
        blocks = {"BLOCK_M": 64, "BLOCK_K": 32, "BLOCK_O": min(block_o, 32), "num_stages": 1, "share": 576}
    else:
        stages = 3 if precision == "bf16" else 2
        blocks = {"BLOCK_M": 32, "BLOCK_K": 128, "BLOCK_O": block_o, "num_stages": stages, "share": 512}
    return blocks | {"num_warps": 4}


def grad_input_options(C: int, OC: int, precision: Precision) -> dict[str, int]:
    """Blocks of the input's gradient."""
    block_c = power_of_two(4 * C, 16, 128)
    if precision == "ieee":
        return {"BLOCK_N": 32, "BLOCK_O": 16, "BLOCK_C": min(block_c, 64), "num_warps": 4, "num_stages": 2}
    if precision == "bf16":
        block_o = power_of_two(OC, 16, 64)
        return {"BLOCK_N": 64, "BLOCK_O": block_o, "BLOCK_C": block_c, "num_warps": 4, "num_stages": 1}
    return {"BLOCK_N": 128, "BLOCK_O": 16, "BLOCK_C": block_c, "num_warps": 8, "num_stages": 3}


def _dot_precision(precision: Precision) -> str:
    return "ieee" if precision == "ieee" else "tf32"


def _operand(filters: Tensor, precision: Precision) -> Tensor:
    """A contiguous copy in the type that is multiplied, in one pass (`to` would keep the strides)."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return torch.empty(filters.shape, dtype=dtype, device=filters.device).copy_(filters)


def _channels_last(x: Tensor) -> Tensor:
    images = x.permute(0, 1, 3, 4, 2)  # (B, N, H, W, C)
    return images if images[0].is_contiguous() else images.contiguous()


def _check(x: Tensor, weight: Tensor, bias: Tensor, precision: Precision) -> None:
    if precision not in ("ieee", "tf32", "bf16"):
        raise ValueError(f"precision {precision!r} is unknown; use 'ieee', 'tf32' or 'bf16'")
    if x.ndim != 5 or weight.ndim != 5 or bias.ndim != 2:
        raise ValueError(
            "conv_relu_pool takes x (B, N, C, H, W), weight (B, OC, C, kh, kw) and bias (B, OC), got "
            f"{tuple(x.shape)}, {tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    B, _, C, H, W = x.shape
    if weight.shape[0] != B or weight.shape[2] != C or bias.shape != weight.shape[:2]:
        raise ValueError(
            f"x {tuple(x.shape)}, weight {tuple(weight.shape)} and bias {tuple(bias.shape)} differ in clients, "
            "channels or filters"
        )
    if weight.shape[3] + 1 > H or weight.shape[4] + 1 > W:
        raise ValueError(
            f"images of {H}x{W} are too small for a {weight.shape[3]}x{weight.shape[4]} filter and pooling"
        )
