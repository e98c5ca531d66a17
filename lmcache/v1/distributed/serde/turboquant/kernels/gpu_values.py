# SPDX-License-Identifier: Apache-2.0
"""Device functions of values: uniform levels between a row's extremes."""

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_codes, gpu_tiles

_TIE = tl.constexpr(1.0 + 2.0**-22)
"""Lifts a level that ends in one half above it, so that it rounds up."""

_UNIT = tl.constexpr(2.0**-24)
"""Spacing of float32 numbers below 1: one level, before levels are packed."""

_EXPONENT_BITS = tl.constexpr(0x7F800000)
_SHARE_EXPONENT_BITS = tl.constexpr((254 - 5) << 23)
"""Exponent of the factor that makes 16 to 32 steps 1, plus that of a step."""


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
    lowest = gpu_tiles.to_half_range(least)
    span = gpu_tiles.to_half_range(greatest) - lowest
    # One correction makes the product with the reciprocal the rounded quotient.
    quotient = span * (1.0 / TOP_LEVEL)
    remainder = tl.fma(quotient, tl.full(span.shape, -TOP_LEVEL, tl.float32), span)
    step = tl.fma(remainder, tl.full(span.shape, 1.0 / TOP_LEVEL, tl.float32), quotient)
    return step.to(tl.float16), lowest.to(tl.float16)


@triton.jit
def level_factors(scale, zero):
    """Return what :func:`levels` multiplies by and adds.

    Args:
        scale: Steps, float16 ``[rows]``.
        zero: Zero points, float16 ``[rows]``.

    Returns:
        float32 ``[rows, 1]``: a power of two that makes more than the highest level
        1; what to add to make the zero point 0; units a share of 1 is, or 0 where
        the scale is 0 or not finite.
    """
    step = scale.to(tl.float32)
    exponent = step.to(tl.int32, bitcast=True) & _EXPONENT_BITS
    share = (-exponent + _SHARE_EXPONENT_BITS).to(tl.float32, bitcast=True)
    # The quotient is approximate; a Newton step makes it good to the last bit.
    span = step * share
    inverse = 1.0 / span
    missing = tl.fma(-span, inverse, tl.full(span.shape, _TIE, tl.float32))
    units = tl.fma(missing, inverse, inverse) * _UNIT
    units = tl.where((step > 0.0) & (step < float("inf")), units, 0.0)
    shift = -zero.to(tl.float32) * share
    return share[:, None], shift[:, None], units[:, None]


@triton.jit
def levels(numbers, factors, BITS: tl.constexpr, PTX: tl.constexpr):
    """Round numbers to the nearest level there is, halves up, and NaN to 0.

    Saturation clamps at either end: the share of a number below the zero point to 0,
    and a level beyond the highest to 1.

    Args:
        numbers: Tensor ``[rows, width]``.
        factors: Result of :func:`level_factors`.
        BITS: Bits a level.
        PTX: Whether PTX instructions are available.

    Returns:
        float32 ``[rows, width]``: the level less the highest, in units of 2**-24,
        plus 1; for ``gpu_codes.pack`` from ``lowest_level_bits`` on.
    """
    if numbers.dtype == tl.float32:
        # 16-bit numbers beyond float16 have the highest level without this.
        numbers = tl.minimum(numbers, gpu_tiles.FP16_MAX)
    share, shift, units = factors
    shares = gpu_codes.fma_saturated(numbers.to(tl.float32), share, shift, PTX)
    LOWEST: tl.constexpr = 1.0 - _UNIT * (2**BITS - 1)
    return gpu_codes.fma_saturated(shares, units, LOWEST, PTX)


@triton.constexpr_function
def lowest_level_bits(bits):
    """Return the bit pattern of level 0, as :func:`levels` returns it."""
    return 0x3F800000 - (2**bits - 1)


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
