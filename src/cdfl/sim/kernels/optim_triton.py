# mypy: ignore-errors
# A type checker does not understand Triton's language.
"""Triton kernels for `adam_step_` and `sgd_step_`. One program: BLOCK parameters of one client."""

from cdfl.sim.kernels.triton_or_stub import jit, tl


@jit
def full_gradient(p, grad, anchor, rho, weight_decay, mask, PROXIMAL: tl.constexpr):
    """Return the gradient with the proximal term and weight decay."""
    g = tl.load(grad, mask=mask, other=0.0)
    if PROXIMAL:
        g += rho * (p - tl.load(anchor, mask=mask, other=0.0))
    return g + weight_decay * p


@jit
def adam_kernel(
    values,  # (B, P), the parameters; grads, anchors, first and second likewise. Triton reserves the name `params`
    grads,
    anchors,
    first,
    second,
    step,  # (B,) integers: steps taken before this one
    active,  # (B,) bool
    values_stride,
    grads_stride,
    anchors_stride,
    first_stride,
    second_stride,
    size,  # P
    lr,
    rho,
    weight_decay,
    eps,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr,
    PROXIMAL: tl.constexpr,
    SOME: tl.constexpr,  # whether `active` is given
    BLOCK: tl.constexpr,
):
    """Adam as in `torch.optim.Adam`."""
    client = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    if SOME:
        mask = mask & (tl.load(active + client) != 0)  # inactive clients read and write nothing
    # In float64, because 1 - .999 would lose four digits in float32; there are two such numbers in a program.
    taken = (tl.load(step + client) + 1).to(tl.float64)
    correction1 = 1.0 - tl.exp(taken * LOG_BETA1)
    correction2 = 1.0 - tl.exp(taken * LOG_BETA2)
    rate = (lr / correction1).to(tl.float32)
    root = tl.sqrt(correction2).to(tl.float32)
    p = tl.load(values + client * values_stride + column, mask=mask, other=0.0)
    g = full_gradient(
        p, grads + client * grads_stride + column, anchors + client * anchors_stride + column, rho, weight_decay, mask,
        PROXIMAL,
    )  # fmt: skip
    m = tl.load(first + client * first_stride + column, mask=mask, other=0.0)
    v = tl.load(second + client * second_stride + column, mask=mask, other=0.0)
    m += (g - m) * (1 - BETA1)
    v = v * BETA2 + (1 - BETA2) * g * g
    p -= rate * tl.div_rn(m, tl.div_rn(tl.sqrt_rn(v), root) + eps)
    tl.store(values + client * values_stride + column, p, mask=mask)
    tl.store(first + client * first_stride + column, m, mask=mask)
    tl.store(second + client * second_stride + column, v, mask=mask)


@jit
def sgd_kernel(
    values,  # (B, P), the parameters; grads, anchors and momenta likewise
    grads,
    anchors,
    momenta,
    active,  # (B,) bool
    values_stride,
    grads_stride,
    anchors_stride,
    momenta_stride,
    size,  # P
    lr,
    rho,
    weight_decay,
    momentum,
    PROXIMAL: tl.constexpr,
    MOMENTUM: tl.constexpr,
    SOME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """SGD with momentum as in `torch.optim.SGD`."""
    client = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    if SOME:
        mask = mask & (tl.load(active + client) != 0)
    p = tl.load(values + client * values_stride + column, mask=mask, other=0.0)
    g = full_gradient(
        p, grads + client * grads_stride + column, anchors + client * anchors_stride + column, rho, weight_decay, mask,
        PROXIMAL,
    )  # fmt: skip
    if MOMENTUM:
        g += momentum * tl.load(momenta + client * momenta_stride + column, mask=mask, other=0.0)
        tl.store(momenta + client * momenta_stride + column, g, mask=mask)
    tl.store(values + client * values_stride + column, p - lr * g, mask=mask)
