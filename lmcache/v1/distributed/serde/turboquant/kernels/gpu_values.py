# SPDX-License-Identifier: Apache-2.0
"""Device functions of values: uniform levels between a row's extremes."""

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_codes, gpu_tiles

_TIE = tl.constexpr(1.0 + 2.0**-23)
"""Lifts a level that ends in one half above it, so that it rounds up."""


@triton.jit
def extremes(chunks, PTX: tl.constexpr):
    """Return the least and the greatest element of each row, or NaN.

    Args:
        chunks: Tuple of tensors ``[rows, width]``.
        PTX: Whether PTX instructions are available.

    Returns:
        Two float32 tensors ``[rows]``.
    """
    low = chunks[0]
    high = chunks[0]
    for index in tl.static_range(1, len(chunks)):
        low = _paired(low, chunks[index], False, PTX)
        high = _paired(high, chunks[index], True, PTX)
    least = tl.reduce(low.to(tl.float32), 1, _lesser)
    return least, tl.reduce(high.to(tl.float32), 1, _greater)


@triton.jit
def scale_and_zero(least, greatest, BITS: tl.constexpr):
    """Return the step between levels and the lowest one, as they are stored.

    Args:
        least: Each row's least element, float32 ``[rows]``.
        greatest: Each row's greatest element.
        BITS: Bits a level.

    Returns:
        Two float16 tensors ``[rows]``; not finite where an extreme is not.
    """
    TOP_LEVEL: tl.constexpr = 2**BITS - 1
    step = tl.div_rn(greatest - least, tl.full(least.shape, TOP_LEVEL, tl.float32))
    return gpu_tiles.to_half(step), gpu_tiles.to_half(least)


@triton.jit
def inverse_of(scale):
    """Return what :func:`levels` multiplies by: 0 where scale is 0 or NaN."""
    step = scale.to(tl.float32)
    inverse = tl.div_rn(tl.full(step.shape, _TIE, tl.float32), step)
    return tl.where(step > 0.0, inverse, 0.0)


@triton.jit
def levels(numbers, zero, inverse, BITS: tl.constexpr, CLAMPS: tl.constexpr):
    """Round numbers to levels, halves up.

    Args:
        numbers: Tensor.
        zero: Zero points, float16; broadcast.
        inverse: Result of :func:`inverse_of`; broadcast.
        BITS: Bits a level.
        CLAMPS: Whether to clamp to the levels that exist, and NaN to 0.

    Returns:
        float32 tensor: ``gpu_codes.INTEGER_STEP`` plus the level.
    """
    LOWEST: tl.constexpr = gpu_codes.INTEGER_STEP
    HIGHEST: tl.constexpr = gpu_codes.INTEGER_STEP + 2**BITS - 1
    above = numbers.to(tl.float32) - zero.to(tl.float32)
    lowest = tl.full(above.shape, LOWEST, tl.float32)
    stepped = tl.fma(above, tl.broadcast_to(inverse, above.shape), lowest)
    if CLAMPS:
        return tl.where(stepped > LOWEST, tl.minimum(stepped, HIGHEST), LOWEST)
    else:
        return stepped


@triton.jit
def leave_range(least, greatest, zero, inverse, BITS: tl.constexpr):
    """Return which rows need to be saturated or their levels to be clamped.

    Args:
        least: Each row's least element, float32 ``[rows]``.
        greatest: Each row's greatest element.
        zero: Each row's zero point, float16.
        inverse: Result of :func:`inverse_of`.
        BITS: Bits a level.

    Returns:
        int1 ``[rows]``, true for rows that are not finite.
    """
    HIGHEST: tl.constexpr = gpu_codes.INTEGER_STEP + 2**BITS - 1
    lowest = levels(least, zero, inverse, BITS, False)
    highest = levels(greatest, zero, inverse, BITS, False)
    has_levels = (lowest >= gpu_codes.INTEGER_STEP) & (highest <= HIGHEST)
    FP16_MAX: tl.constexpr = gpu_tiles.FP16_MAX
    return ~(has_levels & (least >= -FP16_MAX) & (greatest <= FP16_MAX))


@triton.jit
def restore(numbers, scale, zero, BITS: tl.constexpr):
    """Undo :func:`levels`.

    Args:
        numbers: Result of ``gpu_codes.unpack``: ``1 + level / 2**BITS``.
        scale: float32, each row's step.
        zero: float32, each row's zero point.

    Returns:
        float32 tensor shaped like ``numbers``.
    """
    span = scale * 2**BITS
    return tl.fma(numbers, span, zero - span)


@triton.jit
def saturated(chunk, scale, zero, DTYPE: tl.constexpr):
    """Round restored values to ``DTYPE``; finite ones do not overflow.

    Args:
        chunk: float32 ``[rows, width]``.
        scale: Each row's step, read from float16.
        zero: Each row's zero point, read from float16.
        DTYPE: What to round to; only float16 can overflow.
    """
    if DTYPE == tl.float16:
        top = tl.where(
            scale + zero - zero - scale == 0.0, gpu_tiles.FP16_MAX, float("inf")
        )
        return _lesser(chunk, top[:, None]).to(DTYPE)
    else:
        return chunk.to(DTYPE)


@triton.jit
def _lesser(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _greater(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _paired(x, y, GREATEST: tl.constexpr, PTX: tl.constexpr):
    """Return the lesser or greater elements, 16-bit ones two at a time."""
    if PTX and x.dtype != tl.float32:
        OPERATION: tl.constexpr = "max" if GREATEST else "min"
        TYPE: tl.constexpr = "bf16x2" if x.dtype == tl.bfloat16 else "f16x2"
        return tl.inline_asm_elementwise(
            OPERATION + ".NaN." + TYPE + " $0, $1, $2;",
            "=r,r,r",
            [x, y],
            dtype=x.dtype,
            is_pure=True,
            pack=2,
        )
    elif GREATEST:
        return _greater(x, y).to(x.dtype)
    else:
        return _lesser(x, y).to(x.dtype)
