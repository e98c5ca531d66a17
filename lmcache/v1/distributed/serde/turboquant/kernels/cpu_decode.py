# SPDX-License-Identifier: Apache-2.0
"""Slots to head vectors on the CPU, a tile at a time."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    SOURCE_REVISION,
    Kernel,
    part,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_directions import (
    read_directions,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_doubled import new_doubled_row
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    Ints,
    to_floats,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    put,
    read_halves,
    read_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
    from_e4m3,
    from_float16,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    CALIBRATED_KEY,
    FLOAT8_KEY,
    VALUE,
    Constants,
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_relative import (
    store_calibrated_rows,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rotation import (
    mix,
    row_norms,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rows import (
    locate_statistics,
    locate_tile,
    store_rows,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_statistics import (
    Rotary,
    Statistics,
)
from lmcache.v1.distributed.serde.turboquant.slot import FP16_BYTES


def decode_tiles(
    destination: np.ndarray,
    payload: np.ndarray,
    plan: Plan,
    constants: Constants,
    statistics: Statistics,
    rotary: Rotary,
    first_tile: int,
    last_tile: int,
    revision: int = SOURCE_REVISION,
) -> None:
    """Decode one field of the tiles from ``first_tile`` to before ``last_tile``.

    Args:
        destination: Bytes of the head vectors.
        payload: Bytes of the payload.
        plan: Where head vectors and fields are.
        constants: Tables of the compressed layers.
        statistics: Statistics of calibrated keys.
        rotary: Their angles.
        first_tile: First tile to decode.
        last_tile: Tile after the last one.
        revision: See ``Kernel``.
    """
    tile = np.empty((plan.dim, LANES), dtype=np.float32)
    scratch = np.empty_like(tile)
    row = new_doubled_row(plan.dim)
    places = np.empty((3, LANES), dtype=np.int64)
    rows_at = places[0]
    fields_at = np.empty(LANES, dtype=np.int64)
    for index in range(first_tile, last_tile):
        layer = locate_tile(plan, index, rows_at, fields_at)
        if plan.kind == FLOAT8_KEY:
            _decode_float8_keys(payload, fields_at, tile)
        elif plan.kind == VALUE:
            _decode_values(payload, fields_at, plan, tile)
        else:
            norm_codes = read_halves(payload, fields_at, plan.codes_bytes)
            magnitudes = norm_codes
            if plan.kind == CALIBRATED_KEY:
                magnitudes = norm_codes & 0x7FFF
            _decode_low_bit_keys(
                payload, fields_at, magnitudes, layer, plan, constants, scratch, tile
            )
            if plan.kind == CALIBRATED_KEY:
                locate_statistics(plan, index, places)
                store_calibrated_rows(
                    tile,
                    norm_codes,
                    destination,
                    plan,
                    statistics,
                    rotary,
                    places,
                    row,
                )
                continue
        store_rows(tile, plan.number_format, destination, rows_at)


DECODE_KERNELS = Kernel(decode_tiles), Kernel(decode_tiles)
"""Of other fields, and of trellis codes.

The types of their constants differ: each is compiled when it is first called.
"""


@part
def _decode_float8_keys(
    payload: np.ndarray, fields_at: np.ndarray, tile: np.ndarray
) -> None:
    """Widen a float8 byte a dimension, four at a time."""
    for dim in range(0, tile.shape[0], 4):
        word = read_words(payload, fields_at, dim)
        for i in range(4):
            put(tile, dim + i, from_e4m3(word >> (8 * i)))


@part
def _decode_low_bit_keys(
    payload: np.ndarray,
    fields_at: np.ndarray,
    norm_codes: Ints,
    layer: int,
    plan: Plan,
    constants: Constants,
    scratch: np.ndarray,
    tile: np.ndarray,
) -> None:
    """Look up directions, give them the keys' norms and undo the rotation."""
    read_directions(payload, fields_at, plan, constants, tile)
    lengths = row_norms(tile, scratch)
    norms = from_float16(norm_codes)
    for dim in range(tile.shape[0]):
        put(tile, dim, get(tile, dim) / lengths * norms)
    scale = mix(tile, scratch, constants.hartley, constants.scale)
    for dim in range(tile.shape[0]):
        put(tile, dim, get(tile, dim) * (scale * constants.signs[layer, dim]))


@part
def _decode_values(
    payload: np.ndarray, fields_at: np.ndarray, plan: Plan, tile: np.ndarray
) -> None:
    """Restore values as ``level * scale + zero``."""
    bits = plan.bits
    scales = from_float16(read_halves(payload, fields_at, plan.codes_bytes))
    zeros = from_float16(read_halves(payload, fields_at, plan.codes_bytes + FP16_BYTES))
    for group in range(tile.shape[0] // LANES):
        word = read_words(payload, fields_at, group * bits)
        for i in range(LANES):
            levels = (word >> (bits * i)) & ((1 << bits) - 1)
            put(tile, group * LANES + i, to_floats(levels) * scales + zeros)
