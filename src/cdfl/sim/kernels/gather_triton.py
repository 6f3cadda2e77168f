# mypy: ignore-errors
# A type checker does not understand Triton's language.
"""Triton kernels for `take_batch` and `take_columns`."""

from cdfl.sim.kernels.triton_or_stub import jit, tl


@jit
def batch_kernel(
    images,  # (B, samples, size)
    targets,  # (B, samples)
    plans,  # (B, steps, batch)
    step,  # (B,)
    limits,  # (B,)
    inputs,  # (B, batch, size)
    chosen,  # (B, batch)
    active,  # (B,) bool
    samples,
    steps,
    batch,
    size,  # numbers in an image
    BLOCK: tl.constexpr,
):
    """One program: one image of a client's batch."""
    n = tl.program_id(0)
    client = tl.program_id(1).to(tl.int64)
    taken = tl.load(step + client)
    if n == 0:
        tl.store(active + client, taken < tl.load(limits + client))
    place = client * batch + n
    sample = tl.load(plans + (client * steps + tl.minimum(taken, steps - 1)) * batch + n)
    tl.store(chosen + place, tl.load(targets + client * samples + sample))
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        values = tl.load(images + (client * samples + sample) * size + i, mask=i < size)
        tl.store(inputs + place * size + i, values, mask=i < size)


@jit
def columns_kernel(
    models,  # (B, P), any stride between rows
    source,  # (Q,) int32
    out,  # (B, Q)
    models_stride,
    columns,  # Q
    BLOCK: tl.constexpr,
):
    """One program: BLOCK columns of one client."""
    client = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.load(source + q, mask=q < columns, other=-1)
    values = tl.load(models + client * models_stride + column, mask=column >= 0, other=0.0)
    tl.store(out + client * columns + q, values.to(out.dtype.element_ty), mask=q < columns)
