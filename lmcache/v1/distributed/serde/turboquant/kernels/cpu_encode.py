# SPDX-License-Identifier: Apache-2.0
"""Head vectors to slots on the CPU, a tile at a time."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_codebook import to_indices
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_common import (
    Search,
    load_common_errors,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    SOURCE_REVISION,
    Kernel,
    part,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    Floats,
    floats,
    ints,
    select,
    unordered,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
    write_halves,
    write_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
    to_e4m3,
    to_float16,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    NUM_BOUNDARIES,
    Constants,
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rotation import (
    mix,
    row_norms,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rows import (
    load_rows,
    locate_tile,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_search import (
    NUM_SCRATCH_TILES,
    search_range,
    search_scale,
    value_levels,
)
from lmcache.v1.distributed.serde.turboquant.slot import FP8_KEY_BITS


@Kernel
def encode_tiles(
    source: np.ndarray,
    payload: np.ndarray,
    plan: Plan,
    constants: Constants,
    search: Search,
    first_tile: int,
    last_tile: int,
    revision: int = SOURCE_REVISION,
) -> None:
    """Encode the tiles from ``first_tile`` to before ``last_tile``.

    A slot's fields are written in the order of their offsets: where levels are
    3 bits wide, a word of eight is stored as four bytes, and the next field
    covers the last one.

    Args:
        source: Bytes of the KV tensor.
        payload: Bytes of the payload.
        plan: Where head vectors and slots are.
        constants: Tables of the compressed layers.
        search: What to try.
        first_tile: First tile to encode.
        last_tile: Tile after the last one.
        revision: See ``Kernel``.
    """
    tile = np.empty((constants.signs.shape[1], LANES), dtype=np.float32)
    scratch = np.empty((NUM_SCRATCH_TILES, *tile.shape), dtype=np.float32)
    errors = np.empty_like(tile)
    rows_at = np.empty(LANES, dtype=np.int64)
    slots_at = np.empty(LANES, dtype=np.int64)
    common_at = np.empty(LANES, dtype=np.int64)
    for index in range(first_tile, last_tile):
        layer = locate_tile(plan, index, rows_at, slots_at)
        load_rows(source, rows_at, 0, plan.number_format, tile)
        if plan.key_bits == FP8_KEY_BITS:
            _encode_float8_keys(tile, payload, slots_at)
        else:
            if len(search.key_scales):
                load_common_errors(
                    plan, search, index, tile.shape[0], common_at, errors
                )
            _encode_low_bit_keys(
                tile,
                errors,
                scratch,
                layer,
                plan,
                constants,
                search,
                payload,
                slots_at,
            )
        load_rows(source, rows_at, plan.value_stride, plan.number_format, tile)
        _encode_values(tile, scratch, plan, search, payload, slots_at)
        if plan.used_bytes < plan.slot_stride:
            for lane in range(LANES):
                payload[slots_at[lane] + plan.used_bytes] = 0


@part
def _encode_float8_keys(
    tile: np.ndarray, payload: np.ndarray, slots_at: np.ndarray
) -> None:
    """Write a float8 byte a dimension, four at a time."""
    for dim in range(0, tile.shape[0], 4):
        word = to_e4m3(get(tile, dim))
        for i in range(1, 4):
            word = word | (to_e4m3(get(tile, dim + i)) << (8 * i))
        write_words(payload, slots_at, dim, word)


@part
def _encode_low_bit_keys(
    tile: np.ndarray,
    errors: np.ndarray,
    scratch: np.ndarray,
    layer: int,
    plan: Plan,
    constants: Constants,
    search: Search,
    payload: np.ndarray,
    slots_at: np.ndarray,
) -> None:
    """Write codebook indices of the rotated keys' directions, then their norms."""
    norms = row_norms(tile, scratch[0])
    divisors = select(norms > 0.0, norms, floats(1.0))
    for dim in range(tile.shape[0]):
        units = get(tile, dim) / divisors
        put(tile, dim, units * constants.signs[layer, dim])
    scale = mix(tile, scratch[0], constants.hartley, constants.scale)
    if len(search.key_scales):
        shares = select(norms > 0.0, floats(1.0) / norms, floats(0.0))
        for dim in range(tile.shape[0]):
            put(tile, dim, get(tile, dim) * scale + get(errors, dim) * shares)
        scale = np.float32(1)
        search_scale(
            tile, constants.thresholds, search.centroids, search.key_scales, scratch
        )
    bits = plan.key_bits
    thresholds = get_rows(constants.thresholds, 0, 1, NUM_BOUNDARIES)
    for group in range(tile.shape[0] // LANES):
        word = ints(0)
        for i in range(LANES):
            coordinates = get(tile, group * LANES + i) * scale
            indices = to_indices(coordinates, thresholds, bits)
            word = word | (indices << (bits * i))
        write_words(payload, slots_at, group * bits, word)
    write_halves(payload, slots_at, plan.key_norm_offset, to_float16(norms))


@part
def _encode_values(
    tile: np.ndarray,
    scratch: np.ndarray,
    plan: Plan,
    search: Search,
    payload: np.ndarray,
    slots_at: np.ndarray,
) -> None:
    """Write levels between each value's extremes, its scale and zero point.

    Levels are chosen for the scale and zero point as they are stored.
    """
    bits = plan.value_bits
    top_level = np.float32((1 << bits) - 1)
    lowest, highest = _extremes(tile)
    scales, zeros, base, step = search_range(
        tile, lowest, highest, top_level, search.value_trims, scratch
    )
    for group in range(tile.shape[0] // LANES):
        word = ints(0)
        for i in range(LANES):
            levels = value_levels(get(tile, group * LANES + i), base, step, top_level)
            word = word | (levels << (bits * i))
        write_words(payload, slots_at, plan.value_offset + group * bits, word)
    write_halves(payload, slots_at, plan.value_scale_offset, scales)
    write_halves(payload, slots_at, plan.value_zero_offset, zeros)


@part
def _extremes(tile: np.ndarray) -> tuple[Floats, Floats]:
    """Return the lowest and highest dimension; NaN if one is; zero is +0."""
    lowest = highest = get(tile, 0)
    strange = unordered(lowest, lowest)
    for dim in range(1, tile.shape[0]):
        numbers = get(tile, dim)
        lowest = select(numbers < lowest, numbers, lowest)
        highest = select(numbers > highest, numbers, highest)
        strange = strange | unordered(numbers, numbers)
    nan = floats(np.nan)
    return select(strange, nan, lowest + 0.0), select(strange, nan, highest)
