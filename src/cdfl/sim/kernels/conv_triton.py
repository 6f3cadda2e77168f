# mypy: ignore-errors
# A type checker does not understand Triton's language.
"""Triton kernels for `conv_relu_pool`: implicit matrix products that never write the full-size convolution.

A pooling window covers four outputs of the convolution, its *corners* 0..3 in row-major order. The forward kernel
computes all four in registers. It stores only their maximum and, as one byte, the corner it came from, or 4 where ReLU
cut it off. The backward kernels need only that byte: the gradient of a corner is the pooled gradient where the byte
names that corner, and zero elsewhere.

No block size depends on the number of clients and nothing is added atomically, so a client's results are the same bits
in every run and in every stack. Images are channels last and a filter's weights are ordered (kh, kw, C), so that
neighbouring threads read neighbouring addresses.
"""

from cdfl.sim.kernels.triton_or_stub import jit, tl


@jit
def window_offset(window, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr):
    """Return the offset of each pooling window's upper left pixel in a client's images (N, H, W, C)."""
    image = window // (HP * WP)
    row = (window // WP) % HP
    return ((image * H + 2 * row) * W + 2 * (window % WP)) * C


@jit
def corners_by_tap(
    start,  # (BLOCK_M, 1) pointers to the windows' upper left pixels
    inside,
    filters,  # (1, BLOCK_O) pointers to filters (kh, kw, C)
    known,  # (1, BLOCK_O): which filters exist
    C: tl.constexpr,
    W: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Return the convolution at the four corners of each window; loads the pixels of each corner separately."""
    K: tl.constexpr = KH * KW * C
    acc0 = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    acc1 = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    acc2 = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    acc3 = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        tap = k // C
        pixel = start + ((tap // KW) * W + tap % KW)[None, :] * C + (k % C)[None, :]
        valid = inside & (k < K)[None, :]
        w = tl.load(filters + k[:, None], mask=(k < K)[:, None] & known, other=0.0)  # (BLOCK_K, BLOCK_O)
        x0 = tl.load(pixel, mask=valid, other=0.0).to(w.dtype)  # (BLOCK_M, BLOCK_K)
        x1 = tl.load(pixel + C, mask=valid, other=0.0).to(w.dtype)
        x2 = tl.load(pixel + W * C, mask=valid, other=0.0).to(w.dtype)
        x3 = tl.load(pixel + (W + 1) * C, mask=valid, other=0.0).to(w.dtype)
        acc0 = tl.dot(x0, w, acc0, input_precision=PRECISION)
        acc1 = tl.dot(x1, w, acc1, input_precision=PRECISION)
        acc2 = tl.dot(x2, w, acc2, input_precision=PRECISION)
        acc3 = tl.dot(x3, w, acc3, input_precision=PRECISION)
    return acc0, acc1, acc2, acc3


@jit
def weights_at(filters, known, row, place, ROWS: tl.constexpr, LENGTH: tl.constexpr):
    """Load weights by row of the filter and position (kw, C) in that row; zero beyond its edge.

    A position counts numbers, not pixels, so that the compiler can load neighbours together.
    """
    valid = (row >= 0) & (row < ROWS) & (place >= 0) & (place < LENGTH)
    return tl.load(filters + (row * LENGTH + place)[:, None], mask=valid[:, None] & known, other=0.0)


@jit
def corners_by_patch(
    start,
    inside,
    filters,
    known,
    C: tl.constexpr,
    W: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,  # (KH + 1, KW + 1, C)
    BLOCK_O: tl.constexpr,
):
    """Return the same from one load: the patch that covers all four corners, multiplied with shifted filters.

    A 5x5 filter then needs 36/25 of the multiplications but far fewer scattered loads, which dominate when there are
    few channels. The corners are summed in different orders, so on a uniform background, where all four are equal up
    to rounding, any of them may be the largest. The filters' gradient is the same for each choice.
    """
    LENGTH: tl.constexpr = (KW + 1) * C
    PATCH: tl.constexpr = (KH + 1) * LENGTH
    acc0 = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    acc1 = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    acc2 = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    acc3 = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    for k0 in range(0, PATCH, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        row = k // LENGTH
        place = k % LENGTH
        w0 = weights_at(filters, known, row, place, KH, KW * C)  # (BLOCK_K, BLOCK_O)
        w1 = weights_at(filters, known, row, place - C, KH, KW * C)
        w2 = weights_at(filters, known, row - 1, place, KH, KW * C)
        w3 = weights_at(filters, known, row - 1, place - C, KH, KW * C)
        pixel = start + (row * (W * C) + place)[None, :]
        pixels = tl.load(pixel, mask=inside & (k < PATCH)[None, :], other=0.0).to(w0.dtype)  # (BLOCK_M, BLOCK_K)
        acc0 = tl.dot(pixels, w0, acc0, input_precision=PRECISION)
        acc1 = tl.dot(pixels, w1, acc1, input_precision=PRECISION)
        acc2 = tl.dot(pixels, w2, acc2, input_precision=PRECISION)
        acc3 = tl.dot(pixels, w3, acc3, input_precision=PRECISION)
    return acc0, acc1, acc2, acc3


@jit
def challenge(best, which, value, corner: tl.constexpr):
    """Return the larger of two values and its corner; a tie goes to the earlier one.

    A NaN wins, as in PyTorch, so that divergence is visible.
    """
    wins = (value > best) | (value != value)
    return tl.where(wins, value, best), tl.where(wins, corner, which)


@jit
def forward_kernel(
    x,  # (B, N, H, W, C)
    weight,  # (B, OC, K) with K = (kh, kw, C), in the operands' type; any stride between clients
    bias,  # (B, OC), likewise
    out,  # (B, N, HP, WP, OC)
    corner,  # the same, uint8
    active,  # (B,) 0: skip this client; unused if ALL
    x_stride,
    weight_stride,
    bias_stride,
    windows,  # N * HP * WP
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OC: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    ALL: tl.constexpr,  # compute all clients
    PRECISION: tl.constexpr,
    BY_PATCH: tl.constexpr,  # how images are read
    BLOCK_M: tl.constexpr,  # windows
    BLOCK_K: tl.constexpr,  # weights, or pixels of a patch, at a time
    BLOCK_O: tl.constexpr,
):
    """One program: BLOCK_M windows of one client, BLOCK_O filters."""
    if not ALL:  # noqa: SIM102  decided at compile time
        if tl.load(active + tl.program_id(2)) == 0:
            return
    HP: tl.constexpr = (H - KH + 1) // 2
    WP: tl.constexpr = (W - KW + 1) // 2
    client = tl.program_id(2).to(tl.int64)
    window = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    inside = (window < windows)[:, None]
    known = (o < OC)[None, :]
    start = x + client * x_stride + window_offset(window, H, W, C, HP, WP)[:, None]
    filters = weight + client * weight_stride + o[None, :] * (KH * KW * C)
    if BY_PATCH:
        acc0, acc1, acc2, acc3 = corners_by_patch(
            start, inside, filters, known, C, W, KH, KW, PRECISION, BLOCK_M, BLOCK_K, BLOCK_O
        )
    else:
        acc0, acc1, acc2, acc3 = corners_by_tap(
            start, inside, filters, known, C, W, KH, KW, PRECISION, BLOCK_M, BLOCK_K, BLOCK_O
        )
    # Add the bias before comparing, as PyTorch does: its rounding can make ties.
    b = tl.load(bias + client * bias_stride + o, mask=o < OC, other=0.0)[None, :]
    best = acc0 + b
    which = tl.zeros((BLOCK_M, BLOCK_O), tl.int32)
    best, which = challenge(best, which, acc1 + b, 1)
    best, which = challenge(best, which, acc2 + b, 2)
    best, which = challenge(best, which, acc3 + b, 3)
    dead = best <= 0
    place = (client * windows + window)[:, None] * OC + o[None, :]
    stored = inside & known
    tl.store(out + place, tl.where(dead, 0.0, best).to(out.dtype.element_ty), mask=stored)
    tl.store(corner + place, tl.where(dead, 4, which).to(tl.uint8), mask=stored)


@jit
def added_product(left, right, acc, PRECISION: tl.constexpr):
    """Return `acc + left.T @ right`.

    The matrix unit cannot transpose 32-bit operands, and this product needs both transposed. For "tf32", three products
    of numbers split into two 16-bit halves are faster and more accurate.
    """
    if PRECISION == "ieee":
        return tl.dot(tl.trans(left), right, acc, input_precision="ieee")
    left_high = left.to(tl.bfloat16)
    right_high = right.to(tl.bfloat16)
    acc = tl.dot(tl.trans(left_high), right_high, acc)
    if PRECISION == "tf32":
        left_low = (left - left_high.to(tl.float32)).to(tl.bfloat16)
        right_low = (right - right_high.to(tl.float32)).to(tl.bfloat16)
        acc = tl.dot(tl.trans(left_high), right_low, acc)
        acc = tl.dot(tl.trans(left_low), right_high, acc)
    return acc


@jit
def grad_weight_kernel(
    x,  # (B, N, H, W, C)
    grad,  # (B, N, HP, WP, OC): gradient of the pooled output
    corner,  # the same, uint8
    partial,  # (splits, B, OC, K + 1): one sum for each share of the windows; the last column is the bias
    x_stride,
    windows,
    share,  # windows of a program
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OC: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PRECISION: tl.constexpr,  # "ieee", "tf32" or "bf16"
    BLOCK_M: tl.constexpr,  # windows at a time
    BLOCK_K: tl.constexpr,  # (kh, kw, C)
    BLOCK_O: tl.constexpr,
    TRANSPOSED: tl.constexpr,  # a row for each weight instead of each filter: the matrix unit needs 64 rows or more
):
    """One program: BLOCK_K weights of BLOCK_O filters of one client, summed over one share of the windows."""
    K: tl.constexpr = KH * KW * C
    HP: tl.constexpr = (H - KH + 1) // 2
    WP: tl.constexpr = (W - KW + 1) // 2
    OUTER: tl.constexpr = (OC + BLOCK_O - 1) // BLOCK_O
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    k = (tl.program_id(0) // OUTER) * BLOCK_K + tl.arange(0, BLOCK_K)
    o = (tl.program_id(0) % OUTER) * BLOCK_O + tl.arange(0, BLOCK_O)
    tap = k // C
    pixel = x + client * x_stride + ((tap // KW) * W + tap % KW)[None, :] * C + (k % C)[None, :]
    acc = tl.zeros((BLOCK_K, BLOCK_O) if TRANSPOSED else (BLOCK_O, BLOCK_K), tl.float32)
    bias = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    stop = tl.minimum((split + 1) * share, windows)
    for first in range(split * share, stop, BLOCK_M):
        window = first + tl.arange(0, BLOCK_M)
        inside = window < stop
        place = (client * windows + window)[:, None] * OC + o[None, :]
        read = inside[:, None] & (o < OC)[None, :]
        g = tl.load(grad + place, mask=read, other=0.0).to(tl.float32)  # (BLOCK_M, BLOCK_O)
        which = tl.load(corner + place, mask=read, other=4)
        bias += tl.where(which < 4, g, 0.0)
        here = pixel + window_offset(window, H, W, C, HP, WP)[:, None]
        valid = inside[:, None] & (k < K)[None, :]
        for i in tl.static_range(4):
            inputs = tl.load(here + ((i // 2) * W + i % 2) * C, mask=valid, other=0.0)  # (BLOCK_M, BLOCK_K)
            masked = tl.where(which == i, g, 0.0)  # (BLOCK_M, BLOCK_O)
            if TRANSPOSED:
                acc = added_product(inputs, masked, acc, PRECISION)
            elif PRECISION == "tf32" and C < 16:
                acc = tl.dot(tl.trans(masked), inputs, acc, input_precision="tf32")
            else:
                acc = added_product(masked, inputs, acc, PRECISION)
    if TRANSPOSED:
        acc = tl.trans(acc)
    rows = partial + ((split * tl.num_programs(2) + client) * OC + o) * (K + 1)
    tl.store(rows[:, None] + k[None, :], acc, mask=(o < OC)[:, None] & (k < K)[None, :])
    if tl.program_id(0) < OUTER:
        tl.store(rows + K, tl.sum(bias, axis=0), mask=o < OC)


@jit
def reduce_kernel(
    partial,  # (splits, B, OC, K + 1)
    grad_weight,  # (B, OC, KEPT, kh, kw), any stride between clients
    grad_bias,  # (B, OC), likewise
    weight_stride,
    bias_stride,
    splits,
    C: tl.constexpr,
    KEPT: tl.constexpr,  # channels that have weights; the others are padding
    OC: tl.constexpr,
    TAPS: tl.constexpr,  # kh * kw
    BLOCK: tl.constexpr,
):
    """Sum the shares in order, and bring the weights into PyTorch's order. One program: BLOCK sums."""
    ROW: tl.constexpr = TAPS * C + 1
    client = tl.program_id(1).to(tl.int64)
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < OC * ROW
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(partial + (split * tl.num_programs(1) + client) * OC * ROW + entry, mask=inside, other=0.0)
    o = entry // ROW
    k = entry % ROW
    is_bias = k == ROW - 1
    place = client * weight_stride + (o * KEPT + k % C) * TAPS + k // C
    tl.store(grad_weight + place, total, mask=inside & ~is_bias & (k % C < KEPT))
    tl.store(grad_bias + client * bias_stride + o, total, mask=inside & is_bias)


@jit
def middle_first(i, size: tl.constexpr):
    """Map 0, 1, 2... to positions from the middle outwards: for size 6 to 2, 3, 1, 4, 0, 5."""
    return (size - 1) // 2 + tl.where(i % 2 == 1, (i + 1) // 2, -(i // 2))


@jit
def grad_input_kernel(
    grad,  # (B, N, HP, WP, OC)
    corner,  # the same, uint8
    weight,  # (B, kh, kw, C, OC), in the operands' type; any stride between clients
    grad_x,  # (B, N, H, W, C)
    weight_stride,
    images,  # N
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OC: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,  # images
    BLOCK_O: tl.constexpr,
    BLOCK_C: tl.constexpr,  # (pixel of the 2x2 square, C)
):
    """One program: the same 2x2 square of input pixels in BLOCK_N images of one client.

    All rows of the product are at one position of the image, so the whole program knows which pooling windows it
    reaches and skips the others. Otherwise the border of a 12x12 image under a 5x5 filter would take more than half of
    the time.
    """
    HP: tl.constexpr = (H - KH + 1) // 2
    WP: tl.constexpr = (W - KW + 1) // 2
    OUTER: tl.constexpr = (OC + BLOCK_O - 1) // BLOCK_O
    INNER: tl.constexpr = (4 * C + BLOCK_C - 1) // BLOCK_C
    client = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    square = tl.program_id(2) // INNER
    u = middle_first(square // ((W + 1) // 2), (H + 1) // 2)  # the middle has the most work, so it
    v = middle_first(square % ((W + 1) // 2), (W + 1) // 2)  # starts first
    column = (tl.program_id(2) % INNER) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = column % C
    p = column // C // 2  # row and column of the pixel in its square; p > 1: padding of the block
    q = column // C % 2
    top = tl.maximum(u - KH // 2, 0)  # windows that reach the square: rows top..u, columns left..v
    left = tl.maximum(v - KW // 2, 0)
    across = tl.minimum(WP - 1, v) - left + 1
    down = tl.minimum(HP - 1, u) - top + 1
    filters = weight + client * weight_stride
    acc = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    for step in range(tl.maximum(across, 0) * tl.maximum(down, 0) * OUTER):
        i = top + step // OUTER // across
        j = left + step // OUTER % across
        o = (step % OUTER) * BLOCK_O + tl.arange(0, BLOCK_O)
        place = (((client * images + n) * HP + i) * WP + j)[:, None] * OC + o[None, :]
        read = (n < images)[:, None] & (o < OC)[None, :]
        g = tl.load(grad + place, mask=read, other=0.0).to(weight.dtype.element_ty)  # (BLOCK_N, BLOCK_O)
        which = tl.load(corner + place, mask=read, other=4)
        for r in tl.static_range(2):
            for s in tl.static_range(2):
                kh = 2 * (u - i) + p - r  # the weight between this pixel and corner (r, s) of window (i, j)
                kw = 2 * (v - j) + q - s
                reaches = (p < 2) & (kh >= 0) & (kh < KH) & (kw >= 0) & (kw < KW)
                line = (kh * KW + kw) * C + c
                valid = reaches[None, :] & (o < OC)[:, None]
                w = tl.load(filters + line[None, :] * OC + o[:, None], mask=valid, other=0.0)  # (BLOCK_O, BLOCK_C)
                masked = tl.where(which == 2 * r + s, g, 0.0).to(w.dtype)
                acc = tl.dot(masked, w, acc, input_precision=PRECISION)
    y = 2 * u + p
    z = 2 * v + q
    place = (((client * images + n)[:, None] * H + y[None, :]) * W + z[None, :]) * C + c[None, :]
    stored = (n < images)[:, None] & ((p < 2) & (y < H) & (z < W))[None, :]
    tl.store(grad_x + place, acc.to(grad_x.dtype.element_ty), mask=stored)
