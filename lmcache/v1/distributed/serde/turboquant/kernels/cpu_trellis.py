# SPDX-License-Identifier: Apache-2.0
"""Rotated directions to trellis codes, as ``trellis.encode`` specifies, on tiles."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    Floats,
    Ints,
    as_floats,
    as_ints,
    floats,
    ints,
    minus_one_where,
    select,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
    put_rows,
    write_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis_levels import (
    one_of_four,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis_tables import (
    NUM_EDGES,
    TrellisTables,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_viterbi import (
    advance,
    first_costs,
    first_paths,
    read_windows,
)
from lmcache.v1.distributed.serde.turboquant.trellis import NUM_STATES, NUM_SUBSETS

NUM_INT_TILES = 2
"""Tiles of int32 that the search needs."""

_TOP_BIT = -(2**31)
_ALL_BITS = -1
_MEMORY = NUM_STATES.bit_length() - 1
"""Path bits of a state."""

_HALF_WINDOW = NUM_SUBSETS // 2


@part
def write_trellis_codes(
    tile: np.ndarray,
    scale: np.float32,
    scratch: np.ndarray,
    int_tiles: np.ndarray,
    bits: int,
    tables: TrellisTables,
    payload: np.ndarray,
    fields_at: np.ndarray,
) -> None:
    """Write the codes that ``trellis.encode`` chooses.

    Args:
        tile: Directions before the last factor, ``[head_dim, LANES]`` float32.
        scale: That factor.
        scratch: Of the same shape.
        int_tiles: ``[NUM_INT_TILES, head_dim, LANES]`` int32, overwritten.
        bits: Bits a code.
        tables: Those of the field.
        payload: Bytes of the payload.
        fields_at: Where fields are.
    """
    starts, survivors = int_tiles[0], int_tiles[1]
    _find_windows(tile, scale, scratch, starts, bits, tables)
    _find_path(scratch, starts, survivors, tables.windows)
    for group in range(tile.shape[0] // LANES):
        path = get(survivors, group * LANES)
        # What a subset lacks to the highest, 3, is its bits' complement.
        lacking = (path >> 3) ^ (path >> 1) ^ path ^ _ALL_BITS
        lacking_low = path ^ _ALL_BITS
        word = ints(0)
        for i in range(LANES):
            lack = ((lacking >> i) & 1) << 1 | ((lacking_low >> (i + 2)) & 1)
            members = (get(starts, group * LANES + i) + lack) >> 2
            path_bits = (path >> (i + _MEMORY)) & 1
            word = word | (members | path_bits << (bits - 1)) << (bits * i)
        write_words(payload, fields_at, group * bits, word)


@part
def _find_windows(
    tile: np.ndarray,
    scale: np.float32,
    scaled: np.ndarray,
    starts: np.ndarray,
    bits: int,
    tables: TrellisTables,
) -> None:
    """Scale directions by their gains and find the lowest level of their windows.

    A negative coordinate that equals a level's magnitude is not past it, unlike a
    positive one: one less is compared.
    """
    gains = _gains(tile, scale, tables)
    edges = get_rows(tables.edges, 0, 1, NUM_EDGES)
    middle = (1 << bits) - _HALF_WINDOW
    for dim in range(tile.shape[0]):
        coordinates = get(tile, dim) * scale * gains
        put(scaled, dim, coordinates)
        negative = minus_one_where(coordinates < 0.0)
        magnitude = (as_ints(coordinates) & ~_TOP_BIT) + negative
        passed = ints(0)
        for edge in edges:
            passed = passed - minus_one_where(magnitude > edge)
        put(starts, dim, (passed ^ negative) - negative + middle)


@part
def _gains(tile: np.ndarray, scale: np.float32, tables: TrellisTables) -> Floats:
    """Return the factors that directions are multiplied by; NaN for a row with NaN.

    Magnitudes are compared as ints, in which NaN is above all.
    """
    if not tables.reach > 0:
        return floats(np.float32(1))
    peaks = ints(0)
    for dim in range(tile.shape[0]):
        magnitudes = as_ints(get(tile, dim) * scale) & ~_TOP_BIT
        peaks = select(magnitudes > peaks, magnitudes, peaks)
    gains = floats(tables.reach) / as_floats(peaks)
    gains = select(gains < tables.least_gain, floats(tables.least_gain), gains)
    return select(gains > tables.greatest_gain, floats(tables.greatest_gain), gains)


@part
def _find_path(
    scaled: np.ndarray, starts: np.ndarray, survivors: np.ndarray, windows: np.ndarray
) -> None:
    """Find the path of the least squared error.

    Args:
        scaled: Coordinates, ``[head_dim, LANES]`` float32.
        starts: Indices of their windows, int32 of the same shape.
        survivors: int32 of the same shape. The best paths to all states after a
            group of ``LANES`` coordinates are kept in its rows; in the end the first
            of these holds the one that is taken.
        windows: ``TrellisTables.windows``.
    """
    costs = first_costs()
    for group in range(scaled.shape[0] // LANES):
        paths = first_paths()
        for i in range(LANES):
            dim = group * LANES + i
            coordinates = get(scaled, dim)
            levels = read_windows(windows, starts, dim)
            offset0, offset1 = coordinates - levels[0], coordinates - levels[1]
            offset2, offset3 = coordinates - levels[2], coordinates - levels[3]
            errors = (
                *(offset0 * offset0, offset1 * offset1),
                *(offset2 * offset2, offset3 * offset3),
            )
            costs, paths = advance(costs, paths, errors, ints(NUM_STATES << i))
        put_rows(survivors, group * LANES, 1, paths)
    least, states = costs[0], ints(0)
    for state in range(1, NUM_STATES):
        is_less = costs[state] < least
        least = select(is_less, costs[state], least)
        states = select(is_less, ints(state), states)
    for group in range(scaled.shape[0] // LANES - 1, -1, -1):
        paths = get_rows(survivors, group * LANES, 1, NUM_STATES)
        path = _pick(paths, states)
        put(survivors, group * LANES, path)
        states = path & (NUM_STATES - 1)


@part
def _pick(paths: tuple[Ints, ...], states: Ints) -> Ints:
    """Return the path to each lane's state."""
    bit0, bit1, bit2 = (states << 31) < 0, (states << 30) < 0, (states << 29) < 0
    low = one_of_four(paths[0], paths[1], paths[2], paths[3], bit0, bit1)
    high = one_of_four(paths[4], paths[5], paths[6], paths[7], bit0, bit1)
    return select(bit2, high, low)
