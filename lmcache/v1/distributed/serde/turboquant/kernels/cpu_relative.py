# SPDX-License-Identifier: Apache-2.0
"""Single head vectors on lanes: eight dimensions at a time, relative or plain.

A *doubled row* is a head vector as float32 bytes, twice: the partner of dimension
``i`` in a rotary pair is ``dim / 2`` further, whichever of the two ``i`` is.
"""

# Standard
from functools import reduce
from typing import Any

# Third Party
from llvmlite import ir
from numba import types
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    FLOATS,
    LANES,
    MASK,
    WORD,
    Floats,
    Ints,
    Mask,
    as_floats,
    as_ints,
    floats,
    select,
    unordered,
    untyped_intrinsic,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
    put_rows,
    read_row_of_words,
    write_row_of_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
    saturate_bfloat16,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import BFLOAT16, Plan
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rows import (
    load_dims,
    store_dims,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_statistics import (
    Rotary,
    Statistics,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_tuples import transpose


@untyped_intrinsic
def any_lane(typingctx: Any, mask: Any) -> Any:
    """Return whether a mask holds in any lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(MASK), generate


@untyped_intrinsic
def lane_sum(typingctx: Any, lanes: Any) -> Any:
    """Add the lanes of a float value up, in a fixed order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = [
            builder.extract_element(args[0], ir.Constant(WORD, i)) for i in range(LANES)
        ]
        return reduce(builder.fadd, parts)

    return types.float32(FLOATS), generate


@part
def new_doubled_row(dim: int) -> np.ndarray:
    """Make room for a doubled row."""
    return np.empty(8 * dim, dtype=np.uint8)


@part
def get_floats(buffer: np.ndarray, index: int) -> Floats:
    """Read eight float32 numbers from the ``index``-th on."""
    return as_floats(read_row_of_words(buffer, 4 * index))


@part
def load_doubled(source: np.ndarray, at: int, plan: Plan, row: np.ndarray) -> bool:
    """Fill a doubled row with the head vector at a byte; say whether it is finite.

    Where there are no rotary pairs, it is not doubled.
    """
    differences = floats(0.0)
    for dim in range(0, plan.dim, LANES):
        numbers = load_dims(source, at, dim, plan.number_format)
        differences = differences + (numbers - numbers)
        write_row_of_words(row, 4 * dim, as_ints(numbers))
        if plan.has_rotary:
            write_row_of_words(row, 4 * (plan.dim + dim), as_ints(numbers))
    return not any_lane(unordered(differences, differences))


@part
def put_doubled(row: np.ndarray, dim: int, first: int, numbers: Floats) -> None:
    """Write eight dimensions of a doubled row."""
    write_row_of_words(row, 4 * first, as_ints(numbers))
    write_row_of_words(row, 4 * (dim + first), as_ints(numbers))


@part
def turn_back(
    row: np.ndarray,
    dim: int,
    half: int,
    cosines: np.ndarray,
    sines: np.ndarray,
    angle: int,
) -> Floats:
    """Turn eight dimensions of a doubled row, from ``dim`` on, back.

    Args:
        row: The doubled row.
        dim: First of the eight dimensions.
        half: Half of the dimensions of a head vector.
        cosines: See ``Rotary``.
        sines: See ``Rotary``.
        angle: Index of the token's first angle.

    Returns:
        The turned dimensions.
    """
    turned = get_floats(row, dim) * get_floats(cosines, angle + dim)
    return turned + get_floats(row, dim + half) * get_floats(sines, angle + dim)


@part
def turn_forth(
    row: np.ndarray,
    dim: int,
    half: int,
    cosines: np.ndarray,
    sines: np.ndarray,
    angle: int,
) -> Floats:
    """Undo :func:`turn_back`, which takes the same arguments."""
    turned = get_floats(row, dim) * get_floats(cosines, angle + dim)
    return turned - get_floats(row, dim + half) * get_floats(sines, angle + dim)


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
def is_turned(turned: np.ndarray, index: int) -> Mask:
    """Return which of eight dimensions, from the ``index``-th on, are turned."""
    return read_row_of_words(turned, 4 * index) < 0


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
