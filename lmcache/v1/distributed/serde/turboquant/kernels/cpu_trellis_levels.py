# SPDX-License-Identifier: Apache-2.0
"""Trellis codes to levels, as ``trellis.decode`` specifies, on tiles."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    Floats,
    Ints,
    Mask,
    as_floats,
    as_ints,
    ints,
    minus_one_where,
    select,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get_rows,
    put,
    read_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis_tables import (
    NUM_MAGNITUDES,
    TrellisTables,
)

_TOP_BIT = -(2**31)
_ALL_BITS = -1


@part
def read_trellis_levels(
    payload: np.ndarray,
    fields_at: np.ndarray,
    bits: int,
    tables: TrellisTables,
    tile: np.ndarray,
) -> None:
    """Fill a tile with the levels that codes stand for.

    Args:
        payload: Bytes of the payload.
        fields_at: Where fields are.
        bits: Bits a code.
        tables: Those of the field.
        tile: ``[head_dim, LANES]`` float32.
    """
    magnitudes = get_rows(tables.magnitudes, 0, 1, NUM_MAGNITUDES)
    group_bits = bits * LANES
    before = ints(0)
    for group in range(tile.shape[0] // LANES):
        word = read_words(payload, fields_at, group * bits)
        # Codes of one, two and three coordinates before, at each code's place.
        first = word << bits | before >> (group_bits - bits)
        second = word << (2 * bits) | before >> (group_bits - 2 * bits)
        third = word << (3 * bits) | before >> (group_bits - 3 * bits)
        parity = word ^ second ^ third
        before = word & ((1 << group_bits) - 1)
        for i in range(LANES):
            place = 32 - bits * (i + 1)
            levels = _level_of(
                word << (place + 1), parity << place, first << place, magnitudes
            )
            put(tile, group * LANES + i, levels)


@part
def _level_of(
    members: Ints, parity: Ints, first: Ints, magnitudes: tuple[Floats, ...]
) -> Floats:
    """Look up levels.

    Args:
        members: Codes without their path bits; like the others, in the top bits of
            their lanes, and any bits may follow.
        parity: The higher bit of the subset.
        first: The lower one.
        magnitudes: ``TrellisTables.magnitudes``, one tuple entry a level.

    Returns:
        The levels.
    """
    sign = (members & _TOP_BIT) ^ _TOP_BIT
    # Bits count levels away from zero above it, and towards zero below it.
    flips = minus_one_where(members > _ALL_BITS)
    places = members ^ flips
    bit0, bit1 = (first ^ flips) < 0, (parity ^ flips) < 0
    bit2, bit3 = (places << 2) < 0, (places << 1) < 0
    m = magnitudes
    near = select(
        bit2,
        one_of_four(m[4], m[5], m[6], m[7], bit0, bit1),
        one_of_four(m[0], m[1], m[2], m[3], bit0, bit1),
    )
    far = select(
        bit2,
        one_of_four(m[12], m[13], m[14], m[15], bit0, bit1),
        one_of_four(m[8], m[9], m[10], m[11], bit0, bit1),
    )
    return as_floats(as_ints(select(bit3, far, near)) | sign)


@part
def one_of_four(a: Ints, b: Ints, c: Ints, d: Ints, bit0: Mask, bit1: Mask) -> Ints:
    """Return what a lower and a higher bit choose of four values.

    Args:
        a: Value where neither bit is set, ints or floats.
        b: Value where the lower one is.
        c: Value where the higher one is.
        d: Value where both are.
        bit0: The lower bit.
        bit1: The higher bit.

    Returns:
        The values.
    """
    return select(bit1, select(bit0, d, c), select(bit0, b, a))
