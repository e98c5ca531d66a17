# SPDX-License-Identifier: Apache-2.0
"""Device functions that look up levels of the trellis code."""

# Tuples of tensors grow in unrolled loops.
# mypy: disable-error-code="assignment"

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_codes

_PAIRS = tl.constexpr(gpu_codes.CODES_PER_WORD // 2)


@triton.jit
def load_before(
    pair_ptrs, FIRST: tl.constexpr, COUNT: tl.constexpr, BITS: tl.constexpr
):
    """Load what comes before words of packed codes.

    Args:
        pair_ptrs: uint16 pointers to the first word of each row, ``[rows]``.
        FIRST: First word to load what is before of.
        COUNT: Words.
        BITS: Bits a code, so bytes a word.

    Returns:
        int32 ``[rows, COUNT]``: the last three path bits before a word, the latest one
        at bit 15, the others ``BITS`` apart; other bits are undefined.
    """
    # As in gpu_tiles.load_words. An odd word of three bytes begins within a pair.
    word = FIRST + tl.arange(0, COUNT)
    place = tl.maximum(word * BITS - 1, 0) // 2
    ptrs = pair_ptrs[None, :] + place[:, None]
    before = tl.load(ptrs).to(tl.int32)
    if BITS % 2:
        before = before << ((word % 2) * 8)[:, None]
    if FIRST == 0:
        before = tl.where((word > 0)[:, None], before, 0)
    return before.permute(1, 0)


@triton.jit
def level_terms(words, before, terms_ptr, BITS: tl.constexpr, PTX: tl.constexpr):
    """Look up packed codes.

    Args:
        words: int32 ``[rows, width / 8]``.
        before: Result of :func:`load_before`.
        terms_ptr: ``gpu_trellis_tables.level_terms``.
        BITS: Bits a code.
        PTX: Whether PTX instructions are available.

    Returns:
        Tuple of eight int32 tensors of the same shape, by position.
    """
    EACH: tl.constexpr = (2 ** (8 * BITS) - 1) // (2**BITS - 1)
    # The path bits, as a signed number.
    PATH: tl.constexpr = ((EACH << (BITS - 1)) + 2**31) % 2**32 - 2**31
    EVEN: tl.constexpr = (2 ** (8 * BITS) - 1) // (2 ** (2 * BITS) - 1)
    first = words << BITS | before >> (16 - BITS)
    second = words << (2 * BITS) | before >> (16 - 2 * BITS)
    third = words << (3 * BITS) | before >> (16 - 3 * BITS)
    members = words ^ ((second ^ third) & PATH)
    # Spread codes with their lower subset bit above them over two words.
    low = (first << 1) & (EVEN << BITS)
    even = members & (EVEN * (2**BITS - 1)) | low
    low = (first >> (BITS - 1)) & (EVEN << BITS)
    odd = (members >> BITS) & (EVEN * (2**BITS - 1)) | low
    terms_ptr += 64 - 2 ** (BITS + 2)
    found = ()
    for pair in tl.static_range(_PAIRS):
        place = (even >> (2 * BITS * pair)) & (2 ** (BITS + 1) - 1)
        found = found + (_entry(terms_ptr, place, PTX),)
        place = (odd >> (2 * BITS * pair)) & (2 ** (BITS + 1) - 1)
        found = found + (_entry(terms_ptr, place, PTX),)
    return found


@triton.jit
def _entry(table_ptr, place, PTX: tl.constexpr):
    """Load one int32 of a table for each of ``place``, int32 of any shape."""
    if PTX:
        # Triton would load in a layout of its own, and shuffle what it loaded.
        return tl.inline_asm_elementwise(
            """{
            .reg .b64 address;
            mad.wide.u32 address, $2, 4, $1;
            ld.global.nc.b32 $0, [address];
            }""",
            "=r,l,r",
            [table_ptr.to(tl.int64), place],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return tl.load(table_ptr + place)


@triton.jit
def halves(entries, TERM: tl.constexpr):
    """Return one float16 of each of a tuple of int32 tensors."""
    found = ()
    for position in tl.static_range(len(entries)):
        bits = (entries[position] >> (16 * TERM)).to(tl.int16)
        found = found + (bits.to(tl.float16, bitcast=True),)
    return found
