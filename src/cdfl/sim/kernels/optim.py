"""Optimiser steps of a stack of clients, in place: Adam and SGD with the proximal term."""

import math
from typing import Any

import torch
from torch import Tensor

from cdfl.sim.kernels.block_sizes import ceil_div, runs_triton

_BLOCK = 1024  # parameters in a program: 8 for each of 128 threads, which reads 16 bytes at a time


def adam_step_(
    params: Tensor,
    grads: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    *,
    lr: float,
    anchors: Tensor | None = None,
    active: Tensor | None = None,
    rho: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> None:
    """Take one step of `torch.optim.Adam` for a stack of clients, with the proximal term rho/2 |p - anchor|^2.

    params, grads, first, second and anchors are (B, P) with any stride between rows, e.g. columns of wider tensors;
    anchors may be one expanded vector. grads are only read. `step` (B,) holds the number of steps that each client took
    before this one, as integers on the device; the caller increases it after the last slice of columns. Rows where
    `active` (B,) is false do not change.

    On a GPU this reads five tensors once and writes three; memory bandwidth bounds its time.

    >>> p, m, v = torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 2)
    >>> adam_step_(p, torch.tensor([[1.0, -2.0]]), m, v, torch.tensor([0]), lr=0.1)
    >>> p
    tensor([[0.9000, 1.1000]])
    """
    if not _use_triton(params, grads, first, second):
        adam_step_torch_(
            params, grads, first, second, step, lr=lr, anchors=anchors, active=active, rho=rho, betas=betas, eps=eps,
            weight_decay=weight_decay,
        )  # fmt: skip
        return
    launch_adam(params, grads, anchors, first, second, step, active, lr, rho, betas, eps, weight_decay)


def launch_adam(
    params: Tensor,
    grads: Tensor,
    anchors: Tensor | None,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    active: Tensor | None,
    lr: float,
    rho: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """Launch the kernel of `adam_step_`."""
    from cdfl.sim.kernels import optim_triton  # lazily: importing Triton is slow, and CPUs do not need it

    B, P = params.shape
    anchor = anchors if anchors is not None and rho else None
    kernel: Any = optim_triton.adam_kernel
    kernel[(ceil_div(P, _BLOCK), B)](
        params, grads, params if anchor is None else anchor, first, second, step, step if active is None else active,
        params.stride(0), grads.stride(0), 0 if anchor is None else anchor.stride(0), first.stride(0), second.stride(0),
        P, lr, rho, weight_decay, eps,
        BETA1=betas[0], BETA2=betas[1], LOG_BETA1=_log(betas[0]), LOG_BETA2=_log(betas[1]),
        PROXIMAL=anchor is not None, SOME=active is not None, BLOCK=_BLOCK,
    )  # fmt: skip


def adam_step_torch_(
    params: Tensor,
    grads: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    *,
    lr: float,
    anchors: Tensor | None = None,
    active: Tensor | None = None,
    rho: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> None:
    """`adam_step_` in PyTorch."""
    g = _full_gradient(params, grads, anchors, rho, weight_decay)
    taken = (step.to(torch.float64) + 1)[:, None]  # (B, 1); float64: 1 - .999 would lose four digits in float32
    m = first.lerp(g, 1 - betas[0])
    v = second * betas[1] + (1 - betas[1]) * g * g
    rate = (lr / (1 - betas[0] ** taken)).to(params.dtype)
    root = (1 - betas[1] ** taken).sqrt().to(params.dtype)
    p = params - rate * m / (v.sqrt() / root + eps)
    _write(active, (params, p), (first, m), (second, v))


def sgd_step_(
    params: Tensor,
    grads: Tensor,
    momenta: Tensor | None,
    *,
    lr: float,
    anchors: Tensor | None = None,
    active: Tensor | None = None,
    rho: float = 0.0,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> None:
    """Take one step of `torch.optim.SGD` for a stack of clients; arguments as in `adam_step_`.

    momenta (B, P) starts at zero; without momentum it may be None.

    >>> p = torch.ones(1, 2)
    >>> sgd_step_(p, torch.tensor([[1.0, -2.0]]), None, lr=0.1)
    >>> p
    tensor([[0.9000, 1.2000]])
    """
    if momentum and momenta is None:
        raise ValueError(f"momentum is {momentum} and momenta is None; pass a tensor `momenta` of zeros")
    if not _use_triton(params, grads, momenta):
        sgd_step_torch_(
            params, grads, momenta, lr=lr, anchors=anchors, active=active, rho=rho, momentum=momentum,
            weight_decay=weight_decay,
        )  # fmt: skip
        return
    launch_sgd(params, grads, momenta, anchors, active, lr, rho, momentum, weight_decay)


def launch_sgd(
    params: Tensor,
    grads: Tensor,
    momenta: Tensor | None,
    anchors: Tensor | None,
    active: Tensor | None,
    lr: float,
    rho: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """Launch the kernel of `sgd_step_`."""
    from cdfl.sim.kernels import optim_triton

    B, P = params.shape
    anchor = anchors if anchors is not None and rho else None
    state = momenta if momentum else None
    kernel: Any = optim_triton.sgd_kernel
    kernel[(ceil_div(P, _BLOCK), B)](
        params, grads, params if anchor is None else anchor, params if state is None else state,
        params if active is None else active,
        params.stride(0), grads.stride(0), 0 if anchor is None else anchor.stride(0),
        0 if state is None else state.stride(0),
        P, lr, rho, weight_decay, momentum,
        PROXIMAL=anchor is not None, MOMENTUM=state is not None, SOME=active is not None, BLOCK=_BLOCK,
    )  # fmt: skip


def sgd_step_torch_(
    params: Tensor,
    grads: Tensor,
    momenta: Tensor | None,
    *,
    lr: float,
    anchors: Tensor | None = None,
    active: Tensor | None = None,
    rho: float = 0.0,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> None:
    """`sgd_step_` in PyTorch."""
    g = _full_gradient(params, grads, anchors, rho, weight_decay)
    if momentum and momenta is not None:
        g = momentum * momenta + g
        _write(active, (momenta, g))
    _write(active, (params, params - lr * g))


def _full_gradient(params: Tensor, grads: Tensor, anchors: Tensor | None, rho: float, weight_decay: float) -> Tensor:
    if anchors is not None and rho:
        grads = grads + rho * (params - anchors)
    return grads + weight_decay * params if weight_decay else grads


def _write(active: Tensor | None, *updates: tuple[Tensor, Tensor]) -> None:
    for target, value in updates:
        target.copy_(value if active is None else torch.where(active[:, None], value, target))


def _use_triton(*tensors: Tensor | None) -> bool:
    given = [t for t in tensors if t is not None]
    return runs_triton(*given) and all(t.dtype == torch.float32 and t.stride(1) == 1 for t in given)


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0 else -1e4  # exp(-1e4) is 0, like 0**step
