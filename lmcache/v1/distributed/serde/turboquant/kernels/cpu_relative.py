# SPDX-License-Identifier: Apache-2.0
"""Tiles of keys relative to their statistics, and back."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    part,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_doubled import (
    get_floats,
    is_turned,
    load_doubled,
    put_doubled,
    turn_back,
    turn_forth,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    Ints,
    select,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
    put_rows,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
    saturate_bfloat16,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    BFLOAT16,
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rows import (
    store_dims,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_statistics import (
    Rotary,
    Statistics,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_tuples import (
    transpose,
)


@part
def load_calibrated_rows(
    source: np.ndarray,
    plan: Plan,
    statistics: Statistics,
    rotary: Rotary,
    places: np.ndarray,
    row: np.ndarray,
    tile: np.ndarray,
    relative: np.ndarray,
) -> None:
    """Fill a tile with keys, and another with keys relative to their statistics.

    Args:
        source: Bytes of the keys.
        plan: Where they are.
        statistics: The statistics.
        rotary: The angles.
        places: ``[3, LANES]``: of each lane, the key's byte, its head, counted over
            all layers, and its token.
        row: A doubled row, overwritten.
        tile: ``[dim, LANES]`` float32, which receives the keys.
        relative: Of the same shape; receives the relative keys.
    """
    # A tuple's arrays are counted references: take them once, not in the loop.
    means, inverses, turned = statistics.means, statistics.inverses, statistics.turned
    cosines, sines = rotary.cosines, rotary.sines
    for lane in range(LANES):
        load_doubled(source, places[0, lane], plan, row)
        first, angle = places[1, lane] * plan.dim, places[2, lane] * plan.dim
        for dim in range(0, plan.dim, LANES):
            numbers = get_floats(row, dim)
            put(tile, dim + lane, numbers)
            if plan.has_rotary:
                back = turn_back(row, dim, plan.dim // 2, cosines, sines, angle)
                numbers = select(is_turned(turned, first + dim), back, numbers)
            offsets = numbers - get_floats(means, first + dim)
            put(relative, dim + lane, offsets * get_floats(inverses, first + dim))
    transpose_tile(tile)
    transpose_tile(relative)


@part
def transpose_tile(tile: np.ndarray) -> None:
    """Turn single head vectors, eight dimensions a row, into lanes, or back."""
    for dim in range(0, tile.shape[0], LANES):
        put_rows(tile, dim, 1, transpose(get_rows(tile, dim, 1, LANES)))


@part
def store_calibrated_rows(
    tile: np.ndarray,
    norm_codes: Ints,
    destination: np.ndarray,
    plan: Plan,
    statistics: Statistics,
    rotary: Rotary,
    places: np.ndarray,
    row: np.ndarray,
) -> None:
    """Undo :func:`load_calibrated_rows` where a key is relative, and round all.

    Args:
        tile: ``[dim, LANES]`` float32, overwritten.
        norm_codes: float16 codes of the norms, negative where a key is relative.
        destination: Bytes of the keys.
        plan: Where they are.
        statistics: The statistics.
        rotary: The angles.
        places: As in :func:`load_calibrated_rows`.
        row: A doubled row, overwritten.
    """
    codes = np.empty((1, LANES), dtype=np.int32)
    put(codes, 0, norm_codes)
    transpose_tile(tile)
    for lane in range(LANES):
        if codes[0, lane] & 0x8000:
            _restore_lane(tile, lane, plan, statistics, rotary, places, row)
        for dim in range(0, plan.dim, LANES):
            numbers = get(tile, dim + lane)
            if plan.number_format == BFLOAT16:
                numbers = saturate_bfloat16(numbers)
            store_dims(numbers, plan.number_format, destination, places[0, lane], dim)


@part
def _restore_lane(
    tile: np.ndarray,
    lane: int,
    plan: Plan,
    statistics: Statistics,
    rotary: Rotary,
    places: np.ndarray,
    row: np.ndarray,
) -> None:
    """Multiply a relative key by its spreads, add its means and turn it forth."""
    means, spreads, turned = statistics.means, statistics.spreads, statistics.turned
    cosines, sines = rotary.cosines, rotary.sines
    first, angle = places[1, lane] * plan.dim, places[2, lane] * plan.dim
    for dim in range(0, plan.dim, LANES):
        numbers = get(tile, dim + lane) * get_floats(spreads, first + dim)
        numbers = numbers + get_floats(means, first + dim)
        put(tile, dim + lane, numbers)
        if plan.has_rotary:
            put_doubled(row, plan.dim, dim, numbers)
    if not plan.has_rotary:
        return
    for dim in range(0, plan.dim, LANES):
        forth = turn_forth(row, dim, plan.dim // 2, cosines, sines, angle)
        numbers = select(is_turned(turned, first + dim), forth, get_floats(row, dim))
        put(tile, dim + lane, numbers)
