# mypy: ignore-errors
# A type checker does not understand Triton's language.
"""Triton kernels for `bias_relu` and its gradient. They pass NaN on, as PyTorch does."""

from cdfl.sim.kernels.triton_or_stub import jit, tl


@jit
def bias_relu_kernel(
    sums,  # (B, N, F)
    bias,  # (B, F), any stride between rows
    out,  # (B, N, F)
    bias_stride,
    size,  # N * F
    features,  # F
    BLOCK: tl.constexpr,
):
    """One program: BLOCK numbers of one client."""
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(sums + client * size + i, mask=i < size, other=0.0)
    x += tl.load(bias + client * bias_stride + i % features, mask=i < size, other=0.0)
    tl.store(out + client * size + i, tl.where(x <= 0, 0.0, x).to(out.dtype.element_ty), mask=i < size)


@jit
def bias_relu_grad_kernel(
    grad,  # (B, N, F)
    out,  # (B, N, F): what bias_relu returned
    passed,  # (B, N, F)
    grad_bias,  # (B, F), any stride between rows
    bias_stride,
    samples,  # N
    features,  # F
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """One program: all samples of BLOCK_F features of one client, so that it can sum over the samples."""
    client = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    sums = tl.zeros((BLOCK_N, BLOCK_F), tl.float32)
    for start in range(0, samples, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        place = (client * samples + n)[:, None] * features + f[None, :]
        inside = (n < samples)[:, None] & (f < features)[None, :]
        g = tl.load(grad + place, mask=inside, other=0.0)
        g = tl.where(tl.load(out + place, mask=inside, other=0.0) <= 0, 0.0, g)
        sums += g
        tl.store(passed + place, g.to(passed.dtype.element_ty), mask=inside)
    tl.store(grad_bias + client * bias_stride + f, tl.sum(sums, axis=0), mask=f < features)
