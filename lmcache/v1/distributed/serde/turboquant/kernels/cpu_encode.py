# SPDX-License-Identifier: Apache-2.0
"""Head vectors to slots on the CPU, a tile at a time."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    SOURCE_REVISION,
    Kernel,
    part,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_doubled import (
    new_doubled_row,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_encode_keys import (
    choose_relative,
    encode_low_bit_keys,
    overlaps_of,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    write_halves,
    write_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
    from_float16,
    to_e4m3,
    to_float16,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    CALIBRATED_KEY,
    FLOAT8_KEY,
    VALUE,
    Constants,
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_relative import (
    load_calibrated_rows,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rotation import (
    row_norms,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rows import (
    load_rows,
    locate_statistics,
    locate_tile,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_statistics import (
    Rotary,
    Statistics,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis import NUM_INT_TILES
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_values import (
    divisors_of,
    extremes,
    write_values,
)


def encode_tiles(
    source: np.ndarray,
    payload: np.ndarray,
    plan: Plan,
    constants: Constants,
    statistics: Statistics,
    rotary: Rotary,
    first_tile: int,
    last_tile: int,
    revision: int = SOURCE_REVISION,
) -> None:
    """Encode one field of the tiles from ``first_tile`` to before ``last_tile``.

    A field's parts are written in the order of their offsets: where codes are
    3 bits wide, a word of eight is stored as four bytes, and what follows covers
    the last one.

    Args:
        source: Bytes of the head vectors.
        payload: Bytes of the payload.
        plan: Where head vectors and fields are.
        constants: Tables of the compressed layers.
        statistics: Statistics of calibrated keys.
        rotary: Their angles.
        first_tile: First tile to encode.
        last_tile: Tile after the last one.
        revision: See ``Kernel``.
    """
    tile = np.empty((plan.dim, LANES), dtype=np.float32)
    scratch = np.empty_like(tile)
    relative = np.empty_like(tile)
    int_tiles = np.empty((NUM_INT_TILES, plan.dim, LANES), dtype=np.int32)
    row = new_doubled_row(plan.dim)
    places = np.empty((3, LANES), dtype=np.int64)
    rows_at = places[0]
    fields_at = np.empty(LANES, dtype=np.int64)
    for index in range(first_tile, last_tile):
        layer = locate_tile(plan, index, rows_at, fields_at)
        if plan.kind == CALIBRATED_KEY:
            locate_statistics(plan, index, places)
            load_calibrated_rows(
                source, plan, statistics, rotary, places, row, tile, relative
            )
        else:
            load_rows(source, rows_at, plan.number_format, tile)
        if plan.kind == FLOAT8_KEY:
            _encode_float8_keys(tile, payload, fields_at)
        elif plan.kind == VALUE:
            _encode_values(tile, plan, payload, fields_at)
        else:
            norms = row_norms(tile, scratch)
            norm_codes = to_float16(norms)
            if plan.kind == CALIBRATED_KEY:
                norms, norm_codes = choose_relative(
                    tile, norms, relative, scratch, statistics.gains, places
                )
            scale = encode_low_bit_keys(
                *(tile, norms, scratch, int_tiles, layer),
                *(plan, constants, payload, fields_at),
            )
            if plan.is_averaged:
                norms = norms / overlaps_of(
                    *(tile, scale, scratch, relative),
                    *(plan, constants, payload, fields_at),
                )
                norm_codes = to_float16(norms)
            write_halves(payload, fields_at, plan.codes_bytes, norm_codes)
        if plan.padding_offset:
            for lane in range(LANES):
                payload[fields_at[lane] + plan.padding_offset] = 0


ENCODE_KERNELS = Kernel(encode_tiles), Kernel(encode_tiles)
"""Of other fields, and of trellis codes.

The types of their constants differ: each is compiled when it is first called.
"""


@part
def _encode_float8_keys(
    tile: np.ndarray, payload: np.ndarray, fields_at: np.ndarray
) -> None:
    """Write a float8 byte a dimension, four at a time."""
    for dim in range(0, tile.shape[0], 4):
        word = to_e4m3(get(tile, dim))
        for i in range(1, 4):
            word = word | (to_e4m3(get(tile, dim + i)) << (8 * i))
        write_words(payload, fields_at, dim, word)


@part
def _encode_values(
    tile: np.ndarray, plan: Plan, payload: np.ndarray, fields_at: np.ndarray
) -> None:
    """Write levels between each value's extremes, its scale and zero point.

    Levels are chosen for the scale and zero point as they are stored.
    """
    top_level = np.float32((1 << plan.bits) - 1)
    lowest, highest = extremes(tile)
    scales = to_float16((highest - lowest) / top_level)
    zeros = to_float16(lowest)
    bases, divisors = from_float16(zeros), divisors_of(from_float16(scales))
    write_values(tile, plan, scales, zeros, bases, divisors, payload, fields_at)
