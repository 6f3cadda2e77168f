# mypy: ignore-errors
# A type checker does not understand Triton's language.
"""The Triton kernel for `cross_entropy` and `cross_entropy_grad`."""

from cdfl.sim.kernels.triton_or_stub import jit, tl


@jit
def cross_entropy_kernel(
    logits,  # (B, N, classes)
    targets,  # (B, N) int64; negative: ignored
    bias,  # (B, classes) to add to the logits, any stride between rows; unused unless BIAS
    losses,  # (B,)
    grad,  # (B, N, classes)
    grad_bias,  # as bias
    bias_stride,
    grad_bias_stride,
    samples,  # N
    classes,
    BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program: one client. It counts the samples first, because every gradient is divided by their number."""
    client = tl.program_id(0).to(tl.int64)
    counts = tl.zeros((BLOCK_N,), tl.int32)
    for start in range(0, samples, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        target = tl.load(targets + client * samples + n, mask=n < samples, other=-1)
        counts += (target >= 0).to(tl.int32)
    count = tl.maximum(tl.sum(counts, axis=0), 1).to(tl.float32)
    c = tl.arange(0, BLOCK_C)
    sums = tl.zeros((BLOCK_N,), tl.float32)
    bias_sums = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    for start in range(0, samples, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        target = tl.load(targets + client * samples + n, mask=n < samples, other=-1)
        place = (client * samples + n)[:, None] * classes + c[None, :]
        inside = (n < samples)[:, None] & (c < classes)[None, :]
        z = tl.load(logits + place, mask=inside, other=-float("inf")).to(tl.float32)  # (BLOCK_N, BLOCK_C)
        if BIAS:
            z += tl.load(bias + client * bias_stride + c, mask=c < classes, other=0.0)[None, :]
        z = tl.where((n < samples)[:, None], z, 0.0)
        z -= tl.max(z, axis=1)[:, None]
        e = tl.exp(z)
        total = tl.sum(e, axis=1)
        is_target = c[None, :] == target[:, None]
        counted = target >= 0  # select, do not multiply: padding may hold NaN
        sums += tl.where(counted, tl.log(total) - tl.sum(tl.where(is_target, z, 0.0), axis=1), 0.0)
        g = tl.where(counted[:, None], (e / total[:, None] - is_target.to(tl.float32)) / count, 0.0)
        bias_sums += tl.where(inside, g, 0.0)
        tl.store(grad + place, g.to(grad.dtype.element_ty), mask=inside)
    tl.store(losses + client, tl.sum(sums, axis=0) / count)
    if BIAS:
        tl.store(grad_bias + client * grad_bias_stride + c, tl.sum(bias_sums, axis=0), mask=c < classes)
