# SPDX-License-Identifier: Apache-2.0
"""Head vectors, ``LANES`` at a time, one a lane.

A tile holds ``LANES`` head vectors as float32 ``[head_dim, LANES]``: an operation
on one row of the tile is done to one dimension of all its head vectors.
"""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    Floats,
    as_floats,
    as_ints,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get_rows,
    put,
    put_rows,
    read_row_of_halves,
    read_row_of_words,
    write_row_of_halves,
    write_row_of_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
    from_bfloat16,
    from_float16,
    saturate,
    to_bfloat16,
    to_float16,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    FLOAT16,
    FLOAT32,
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_tuples import transpose


@part
def locate_tile(
    plan: Plan, tile_index: int, rows_at: np.ndarray, fields_at: np.ndarray
) -> int:
    """Find the head vectors of a tile and their fields.

    Lanes past the layer's last head vector repeat it: they compute and store
    the same bytes.

    Args:
        plan: Where head vectors and fields are.
        tile_index: Tile, counted over all compressed layers.
        rows_at: Receives the byte offsets of the tile's head vectors.
        fields_at: Receives the byte offsets of their fields.

    Returns:
        The tile's layer, counted from the first compressed one.
    """
    num_rows = plan.num_tokens * plan.num_heads
    tiles_per_layer = (num_rows + LANES - 1) // LANES
    layer = tile_index // tiles_per_layer
    row = tile_index % tiles_per_layer * LANES
    token, head = row // plan.num_heads, row % plan.num_heads
    layer_at = plan.rows_offset + layer * plan.layer_stride
    layer_fields_at = plan.fields_offset + layer * plan.layer_slots_stride
    for lane in range(LANES):
        rows_at[lane] = layer_at + token * plan.token_stride + head * plan.head_stride
        fields_at[lane] = layer_fields_at + row * plan.slot_stride
        if row + 1 < num_rows:
            row, head = row + 1, head + 1
            if head == plan.num_heads:
                token, head = token + 1, 0
    return layer


@part
def locate_statistics(plan: Plan, tile_index: int, places: np.ndarray) -> None:
    """Find what the head vectors of a tile share with others.

    Args:
        plan: Where head vectors are.
        tile_index: As in :func:`locate_tile`.
        places: ``[3, LANES]``. Its second row receives each lane's head, counted
            over all compressed layers; its third receives the token.
    """
    num_rows = plan.num_tokens * plan.num_heads
    tiles_per_layer = (num_rows + LANES - 1) // LANES
    layer = tile_index // tiles_per_layer
    row = tile_index % tiles_per_layer * LANES
    token, head = row // plan.num_heads, row % plan.num_heads
    for lane in range(LANES):
        places[1, lane] = layer * plan.num_heads + head
        places[2, lane] = token
        if row + 1 < num_rows:
            row, head = row + 1, head + 1
            if head == plan.num_heads:
                token, head = token + 1, 0


@part
def load_rows(
    source: np.ndarray,
    rows_at: np.ndarray,
    number_format: int,
    tile: np.ndarray,
) -> None:
    """Fill a tile with the head vectors at ``rows_at``."""
    for dim in range(0, tile.shape[0], LANES):
        for i in range(LANES):
            put(tile, dim + i, load_dims(source, rows_at[i], dim, number_format))
        put_rows(tile, dim, 1, transpose(get_rows(tile, dim, 1, LANES)))


@part
def load_dims(source: np.ndarray, at: int, dim: int, number_format: int) -> Floats:
    """Widen eight dimensions, from ``dim`` on, of the head vector at a byte.

    Finite numbers beyond float16's range become its largest.
    """
    if number_format == FLOAT32:
        return saturate(as_floats(read_row_of_words(source, at + 4 * dim)))
    codes = read_row_of_halves(source, at + 2 * dim)
    if number_format == FLOAT16:
        return from_float16(codes)
    return saturate(from_bfloat16(codes))


@part
def store_rows(
    tile: np.ndarray,
    number_format: int,
    destination: np.ndarray,
    rows_at: np.ndarray,
) -> None:
    """Round a tile into the head vectors at ``rows_at``."""
    for dim in range(0, tile.shape[0], LANES):
        rows = transpose(get_rows(tile, dim, 1, LANES))
        for i in range(LANES):
            store_dims(rows[i], number_format, destination, rows_at[i], dim)


@part
def store_dims(
    numbers: Floats, number_format: int, destination: np.ndarray, at: int, dim: int
) -> None:
    """Round eight dimensions, from ``dim`` on, of the head vector at a byte."""
    if number_format == FLOAT32:
        write_row_of_words(destination, at + 4 * dim, as_ints(numbers))
    elif number_format == FLOAT16:
        write_row_of_halves(destination, at + 2 * dim, to_float16(numbers))
    else:
        write_row_of_halves(destination, at + 2 * dim, to_bfloat16(numbers))
