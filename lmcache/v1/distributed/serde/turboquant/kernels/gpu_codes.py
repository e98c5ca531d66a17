# SPDX-License-Identifier: Apache-2.0
"""Device functions of packed codes, in inverse pairs.

``pack`` and ``unpack``, ``bucketise`` and ``centroids``. A word holds the codes of
eight neighbouring dimensions, lowest bits first: 32 bits at 4 bits a code, 24 at 3,
16 at 2.

Where ``PTX`` is False, functions avoid instructions that the Triton interpreter
lacks; either way gives the same bits.
"""

# Tuples of tensors grow in unrolled loops.
# mypy: disable-error-code="assignment"

# Third Party
import triton
import triton.language as tl

CODES_PER_WORD = tl.constexpr(8)

INTEGER_STEP = tl.constexpr(1.5 * 2.0**23)
"""Adding it to a small float32 rounds to an integer, held in the low bits."""

INTEGER_STEP_BITS = tl.constexpr(0x4B400000)


@triton.jit
def pack(stepped, BITS: tl.constexpr, LOWEST_BITS: tl.constexpr):
    """Pack codes that are the distances of float32 numbers from the lowest.

    Args:
        stepped: float32 ``[rows, width]``, as many numbers above the lowest one as
            the code says.
        BITS: Bits a code.
        LOWEST_BITS: Bit pattern of the number that stands for code 0.

    Returns:
        int32 words ``[rows, width / 8]``.
    """
    ROWS: tl.constexpr = stepped.shape[0]
    WORDS: tl.constexpr = stepped.shape[1] // CODES_PER_WORD
    REPEATED: tl.constexpr = (2 ** (BITS * CODES_PER_WORD) - 1) // (2**BITS - 1)
    EXCESS: tl.constexpr = LOWEST_BITS * REPEATED % 2**32
    codes = stepped.to(tl.int32, bitcast=True).reshape(ROWS, WORDS, CODES_PER_WORD)
    shifts = tl.arange(0, CODES_PER_WORD) * BITS
    # The constant bits of the summands add up to EXCESS, modulo 2**32.
    total = tl.sum(codes << shifts[None, None, :], axis=2).to(tl.uint32, bitcast=True)
    return (total - EXCESS).to(tl.int32, bitcast=True)


@triton.jit
def close_gaps(words, BITS: tl.constexpr):
    """Move words of ``8 * BITS`` bits together, to words of 32 bits.

    Args:
        words: int32 ``[rows, n]``, ``n`` at most 4.
        BITS: Bits a code: 2, 3 or 4. Words of 2-bit codes, half as wide, stay.

    Returns:
        int32 ``[rows, n]``, whose first ``8 * BITS * n`` bits are the words.
    """
    if BITS % 2 == 0:
        return words
    else:
        tl.static_assert(BITS == 3, "codes of 2 to 4 bits are known")
        COUNT: tl.constexpr = words.shape[1]
        place = tl.broadcast_to(tl.arange(0, COUNT)[None, :], words.shape)
        following = tl.gather(words, tl.minimum(place + 1, COUNT - 1), axis=1)
        return (words >> (place * 8)) | (following << (24 - place * 8))


@triton.jit
def unpack(words, BITS: tl.constexpr):
    """Spread codes over the numbers ``1 + code / 2**BITS``.

    Args:
        words: int32 ``[rows, width / 8]``.
        BITS: Bits a code.

    Returns:
        Tuple of eight float32 tensors of the same shape, by position.
    """
    MANTISSA_BITS: tl.constexpr = 23
    ONE: tl.constexpr = 0x3F800000
    LOWEST: tl.constexpr = MANTISSA_BITS - BITS
    numbers = ()
    for position in tl.static_range(CODES_PER_WORD):
        if position * BITS > LOWEST:
            moved = words >> (position * BITS - LOWEST)
        else:
            moved = words << (LOWEST - position * BITS)
        bits = moved & ((2**BITS - 1) << LOWEST) | ONE
        numbers = numbers + (bits.to(tl.float32, bitcast=True),)
    return numbers


@triton.jit
def join_positions(parts):
    """Interleave eight tensors ``[rows, n]`` to one ``[rows, 8 n]``."""
    ROWS: tl.constexpr = parts[0].shape[0]
    WIDTH: tl.constexpr = parts[0].shape[1] * CODES_PER_WORD
    even = tl.join(tl.join(parts[0], parts[4]), tl.join(parts[2], parts[6]))
    odd = tl.join(tl.join(parts[1], parts[5]), tl.join(parts[3], parts[7]))
    return tl.join(even, odd).reshape(ROWS, WIDTH)


@triton.jit
def bucketise(
    coordinates,
    factors,
    BITS: tl.constexpr,
    POLYNOMIAL: tl.constexpr,
    PTX: tl.constexpr,
):
    """Count the codebook's boundaries at or below each coordinate.

    Args:
        coordinates: float32 ``[rows, width]``.
        factors: float32 ``[rows]``: what makes of coordinates multiples of
            ``gpu_constants.index_unit``.
        BITS: Bits an index.
        POLYNOMIAL: ``gpu_constants.index_polynomial``.
        PTX: Whether PTX instructions are available.

    Returns:
        float32 ``[rows, width]``: ``INTEGER_STEP`` plus the index. NaN gives
        the highest index, as ``torch.bucketize`` does.
    """
    # The unit is negative: saturation to [0, 1] takes NaN to 0, the highest index.
    multiple = fma_saturated(coordinates, factors[:, None], 0.5, PTX) - 0.5
    square = multiple * multiple
    slope = tl.full(square.shape, POLYNOMIAL[0], tl.float32)
    for index in tl.static_range(1, len(POLYNOMIAL)):
        slope = tl.fma(slope, square, POLYNOMIAL[index])
    return _fma_down(multiple, slope, INTEGER_STEP + 2 ** (BITS - 1), PTX)


@triton.jit
def stepped_centroids(stepped, BITS: tl.constexpr, POLYNOMIAL: tl.constexpr):
    """Return what the results of :func:`bucketise` stand for, of N(0, 1).

    Args:
        stepped: float32 ``[rows, width]``.
        BITS: Bits an index.
        POLYNOMIAL: ``gpu_constants.centroid_polynomial``.

    Returns:
        float32 ``[rows, width]``.
    """
    HALF: tl.constexpr = 2 ** (BITS - 1)
    place = (stepped - INTEGER_STEP - (HALF - 0.5)) * (1.0 / HALF)
    square = place * place
    slope = tl.full(square.shape, POLYNOMIAL[0], tl.float32)
    for index in tl.static_range(1, len(POLYNOMIAL)):
        slope = tl.fma(slope, square, POLYNOMIAL[index])
    return place * slope


@triton.jit
def centroids(
    words,
    BITS: tl.constexpr,
    TERM: tl.constexpr,
    TERMS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    LOOKUP: tl.constexpr,
):
    """Look up packed indices.

    Args:
        words: int32 ``[rows, width / 8]``.
        BITS: Bits an index.
        TERM: Which table to look in.
        TERMS: Tables of ``2**BITS`` bit patterns of float16, one after the other.
        LOOKUPS: PTX of ``gpu_lookup.assembly`` for tables, or None.
        LOOKUP: Place of that for the first of ``TERMS``.

    Returns:
        Tuple of eight float16 tensors of the same shape, by position.
    """
    if LOOKUPS is not None:
        return tl.inline_asm_elementwise(
            LOOKUPS[LOOKUP + TERM],
            "=h,=h,=h,=h,=h,=h,=h,=h,r",
            [words],
            dtype=(tl.float16,) * 8,
            is_pure=True,
            pack=1,
        )
    else:
        found = ()
        for position in tl.static_range(CODES_PER_WORD):
            index = (words >> (position * BITS)) & (2**BITS - 1)
            bits = tl.zeros(words.shape, tl.int32)
            for code in tl.static_range(2**BITS):
                bits = tl.where(index == code, TERMS[TERM * 2**BITS + code], bits)
            found = found + (bits.to(tl.int16).to(tl.float16, bitcast=True),)
        return found


@triton.jit
def fma_saturated(x, y, z, PTX: tl.constexpr):
    """Return ``x * y + z`` rounded once and clamped to [0, 1]; NaN gives 0."""
    if PTX:
        return tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, $2, $3;",
            "=f,f,f,f",
            [x, y, z],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    total = tl.fma(x, y + tl.zeros_like(x), z)
    return tl.where(total > 0, tl.minimum(total, 1.0), 0.0)


@triton.jit
def _fma_down(x, y, z, PTX: tl.constexpr):
    """Return ``x * y + z`` rounded once, towards minus infinity, to an integer."""
    if PTX:
        return tl.inline_asm_elementwise(
            "fma.rm.f32 $0, $1, $2, $3;",
            "=f,f,f,f",
            [x, y, z],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return (tl.floor(x.to(tl.float64) * y.to(tl.float64)) + z).to(tl.float32)
