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
def load_rows(
    source: np.ndarray,
    rows_at: np.ndarray,
    number_format: int,
    tile: np.ndarray,
) -> None:
    """Fill a tile with the head vectors at ``rows_at``.

    Finite numbers beyond float16's range become its largest.
    """
    for dim in range(0, tile.shape[0], LANES):
        for i in range(LANES):
            if number_format == FLOAT32:
                words = read_row_of_words(source, rows_at[i] + 4 * dim)
                put(tile, dim + i, saturate(as_floats(words)))
            else:
                codes = read_row_of_halves(source, rows_at[i] + 2 * dim)
                if number_format == FLOAT16:
                    put(tile, dim + i, from_float16(codes))
                else:
                    put(tile, dim + i, saturate(from_bfloat16(codes)))
        put_rows(tile, dim, 1, transpose(get_rows(tile, dim, 1, LANES)))


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
            if number_format == FLOAT32:
                at = rows_at[i] + 4 * dim
                write_row_of_words(destination, at, as_ints(rows[i]))
            else:
                at = rows_at[i] + 2 * dim
                if number_format == FLOAT16:
                    write_row_of_halves(destination, at, to_float16(rows[i]))
                else:
                    write_row_of_halves(destination, at, to_bfloat16(rows[i]))
