# SPDX-License-Identifier: Apache-2.0
"""Low-bit keys to slots: which is coded, relative or plain, and how."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_codebook import (
    to_indices,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    part,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_directions import (
    read_directions,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    Floats,
    Ints,
    floats,
    ints,
    minus_one_where,
    select,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
    write_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
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
    row_sums,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis import (
    write_trellis_codes,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis_tables import (
    TrellisTables,
)


@part
def choose_relative(
    tile: np.ndarray,
    norms: Floats,
    relative: np.ndarray,
    scratch: np.ndarray,
    gains: np.ndarray,
    places: np.ndarray,
) -> tuple[Floats, Ints]:
    """Replace keys by relative ones where the error is less.

    Args:
        tile: Keys.
        norms: Their norms.
        relative: Keys relative to their statistics.
        scratch: Of the same shape.
        gains: How much an error of a relative key grows on the way back, by head.
        places: As in ``load_calibrated_rows``.

    Returns:
        The norms of what is in the tile now, and their codes, whose sign tells
        which keys are relative.
    """
    for lane in range(LANES):
        scratch[0, lane] = gains[places[1, lane]]
    growth = get(scratch, 0)
    relative_norms = row_norms(relative, scratch)
    better = minus_one_where(relative_norms * growth < norms)
    # In place, LLVM makes masked stores, which some processors are slow at.
    for dim in range(tile.shape[0]):
        put(scratch, dim, select(better < 0, get(relative, dim), get(tile, dim)))
    for dim in range(tile.shape[0]):
        put(tile, dim, get(scratch, dim))
    norms = select(better < 0, relative_norms, norms)
    return norms, to_float16(norms) | (better & 0x8000)


@part
def encode_low_bit_keys(
    tile: np.ndarray,
    norms: Floats,
    scratch: np.ndarray,
    int_tiles: np.ndarray,
    layer: int,
    plan: Plan,
    constants: Constants,
    payload: np.ndarray,
    fields_at: np.ndarray,
) -> np.float32:
    """Write the codes of the directions of the rotated keys.

    Args:
        tile: Keys; overwritten.
        norms: Their norms.
        scratch: Of the same shape.
        int_tiles: As in ``write_trellis_codes``; anything for other codes.
        layer: Their layer, counted from the first compressed one.
        plan: Where fields are.
        constants: Tables of the compressed layers.
        payload: Bytes of the payload.
        fields_at: Where fields are.

    Returns:
        What the tile is still to be multiplied by to hold the directions.
    """
    divisors = select(norms > 0.0, norms, floats(1.0))
    for dim in range(tile.shape[0]):
        units = get(tile, dim) / divisors
        put(tile, dim, units * constants.signs[layer, dim])
    scale = mix(tile, scratch, constants.hartley, constants.scale)
    _write_codes(
        *(tile, scale, scratch, int_tiles, plan.bits),
        *(constants.thresholds, constants.trellis, payload, fields_at),
    )
    return scale


@part
def _write_codes(
    tile: np.ndarray,
    scale: np.float32,
    scratch: np.ndarray,
    int_tiles: np.ndarray,
    bits: int,
    boundaries: np.ndarray,
    trellis: TrellisTables | None,
    payload: np.ndarray,
    fields_at: np.ndarray,
) -> None:
    """Write codes; numba drops a branch on whether an argument is None."""
    if trellis is not None:
        write_trellis_codes(
            *(tile, scale, scratch, int_tiles, bits, trellis, payload, fields_at)
        )
        return
    thresholds = get_rows(boundaries, 0, 1, NUM_BOUNDARIES)
    for group in range(tile.shape[0] // LANES):
        word = ints(0)
        for i in range(LANES):
            coordinates = get(tile, group * LANES + i) * scale
            indices = to_indices(coordinates, thresholds, bits)
            word = word | (indices << (bits * i))
        write_words(payload, fields_at, group * bits, word)


@part
def overlaps_of(
    tile: np.ndarray,
    scale: np.float32,
    scratch: np.ndarray,
    sums: np.ndarray,
    plan: Plan,
    constants: Constants,
    payload: np.ndarray,
    fields_at: np.ndarray,
) -> Floats:
    """Return the cosines of directions and what their codes stand for.

    Args:
        tile: Directions before the last factor; overwritten.
        scale: That factor.
        scratch: Of the same shape.
        sums: Of the same shape.
        plan: Where fields are.
        constants: Tables of the compressed layers.
        payload: Holds the codes.
        fields_at: Where fields are.

    Returns:
        The cosines; 1 where one is not positive.
    """
    read_directions(payload, fields_at, plan, constants, scratch)
    for dim in range(tile.shape[0]):
        put(tile, dim, get(tile, dim) * scale * get(scratch, dim))
    cosines = row_sums(tile, sums) / row_norms(scratch, sums)
    return select(cosines > 0.0, cosines, floats(1.0))
