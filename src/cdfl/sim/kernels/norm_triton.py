# mypy: ignore-errors
# A type checker does not understand Triton's language.
"""Triton kernels for `norm_relu`. A row holds the channels of one pixel; C channels are a row."""

from cdfl.sim.kernels.triton_or_stub import jit, tl


@jit
def sums_kernel(
    images,  # (rows, C)
    grad,  # (rows, C)
    out,  # (rows, C)
    partial,  # (splits, 2, C) float32
    rows,
    share,  # rows of one program
    C: tl.constexpr,
    BACKWARD: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program: some columns of some rows."""
    split = tl.program_id(1)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = split * share
    last = tl.minimum(first + share, rows)
    one = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    two = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for start in range(first, last, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        inside = (row < last)[:, None] & (c < C)[None, :]
        place = row.to(tl.int64)[:, None] * C + c[None, :]
        x = tl.load(images + place, mask=inside, other=0.0).to(tl.float32)
        if BACKWARD:
            g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
            if RELU:
                g = tl.where(tl.load(out + place, mask=inside, other=0.0).to(tl.float32) > 0, g, 0.0)
            one += g
            two += g * x
        else:
            one += x
            two += x * x
    tl.store(partial + (split * 2) * C + c, tl.sum(one, axis=0), mask=c < C)
    tl.store(partial + (split * 2 + 1) * C + c, tl.sum(two, axis=0), mask=c < C)


@jit
def total(partial, c, splits, C: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return both sums over all splits, float64: differences of large sums lose digits."""
    one = tl.zeros((BLOCK_S, BLOCK_C), tl.float64)
    two = tl.zeros((BLOCK_S, BLOCK_C), tl.float64)
    for start in range(0, splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        inside = (split < splits)[:, None] & (c < C)[None, :]
        place = partial + (split * 2)[:, None] * C + c[None, :]
        one += tl.load(place, mask=inside, other=0.0).to(tl.float64)
        two += tl.load(place + C, mask=inside, other=0.0).to(tl.float64)
    return tl.sum(one, axis=0), tl.sum(two, axis=0)


@jit
def moments_kernel(
    partial,  # (splits, 2, C): sums, and sums of squares
    weight,  # (C,), as all that follow
    bias,
    running_mean,
    running_variance,
    scale,
    shift,
    moments,  # (2, C): mean, 1 / deviation
    rows,
    splits,
    momentum,
    eps,
    C: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program: the moments of some columns."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < C
    sums, squares = total(partial, c, splits, C, BLOCK_S, BLOCK_C)
    mean = sums / rows
    variance = tl.maximum(squares / rows - mean * mean, 0.0)
    unbiased = (variance * rows / tl.maximum(rows - 1, 1)).to(tl.float32)
    mean = mean.to(tl.float32)
    inverse = 1.0 / tl.sqrt(variance.to(tl.float32) + eps)
    factor = tl.load(weight + c, mask=known, other=0.0) * inverse
    tl.store(scale + c, factor, mask=known)
    tl.store(shift + c, tl.load(bias + c, mask=known, other=0.0) - mean * factor, mask=known)
    tl.store(moments + c, mean, mask=known)
    tl.store(moments + C + c, inverse, mask=known)
    old = tl.load(running_mean + c, mask=known, other=0.0)
    tl.store(running_mean + c, old + momentum * (mean - old), mask=known)
    old = tl.load(running_variance + c, mask=known, other=0.0)
    tl.store(running_variance + c, old + momentum * (unbiased - old), mask=known)


@jit
def forward_kernel(
    images,  # (rows, C) in one piece
    added,
    scale,  # (C,), as all that follow
    shift,
    mean,
    variance,
    out,
    size,  # numbers of the images
    eps,
    C: tl.constexpr,
    NORMALISE: tl.constexpr,
    ADDED: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: BLOCK numbers."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    c = (place % C).to(tl.int32)
    y = tl.load(images + place, mask=inside, other=0.0).to(tl.float32)
    if NORMALISE:
        y = (y - tl.load(mean + c)) / tl.sqrt(tl.load(variance + c) + eps)
    y = y * tl.load(scale + c) + tl.load(shift + c)
    if ADDED:
        y += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        y = tl.where(y < 0, 0.0, y)  # NaN stays
    tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


@jit
def factors_kernel(
    partial,  # (splits, 2, C): sums of the gradient, and of its product with the images
    weight,  # (C,)
    moments,  # (2, C)
    grad_weight,  # (C,)
    grad_bias,
    factors,  # (3, C): the gradient of the images is factors[0] * grad + factors[1] * images + factors[2]
    rows,
    splits,
    C: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program: the factors of some columns."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < C
    sums, products = total(partial, c, splits, C, BLOCK_S, BLOCK_C)
    mean = tl.load(moments + c, mask=known, other=0.0).to(tl.float64)
    inverse = tl.load(moments + C + c, mask=known, other=0.0).to(tl.float64)
    of_weight = (products - mean * sums) * inverse
    tl.store(grad_weight + c, of_weight.to(tl.float32), mask=known)
    tl.store(grad_bias + c, sums.to(tl.float32), mask=known)
    scale = tl.load(weight + c, mask=known, other=0.0).to(tl.float64) * inverse
    slope = -scale * inverse * of_weight / rows
    tl.store(factors + c, scale.to(tl.float32), mask=known)
    tl.store(factors + C + c, slope.to(tl.float32), mask=known)
    tl.store(factors + 2 * C + c, (-scale * sums / rows - slope * mean).to(tl.float32), mask=known)


@jit
def backward_kernel(
    images,  # (rows, C) in one piece
    out,
    grad,
    factors,  # (3, C)
    grad_images,
    grad_added,
    size,
    C: tl.constexpr,
    ADDED: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: BLOCK numbers."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    c = (place % C).to(tl.int32)
    g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        g = tl.where(tl.load(out + place, mask=inside, other=0.0).to(tl.float32) > 0, g, 0.0)
    if ADDED:
        tl.store(grad_added + place, g.to(grad_added.dtype.element_ty), mask=inside)
    x = tl.load(images + place, mask=inside, other=0.0).to(tl.float32)
    found = g * tl.load(factors + c) + x * tl.load(factors + C + c) + tl.load(factors + 2 * C + c)
    tl.store(grad_images + place, found.to(grad_images.dtype.element_ty), mask=inside)
