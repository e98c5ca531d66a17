# SPDX-License-Identifier: Apache-2.0
"""The errors that the keys of a head share, as ``search.common_error`` specifies."""

# Standard
from typing import NamedTuple

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant import tables
from lmcache.v1.distributed.serde.turboquant.effort import Effort
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_codebook import (
    nearest_centroids,
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
    select,
    square_root,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import saturate
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    FLOAT32,
    NUM_BOUNDARIES,
    NUM_CENTROIDS,
    Constants,
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rotation import (
    mix,
    row_norms,
    row_sums,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rows import (
    load_rows,
    store_rows,
)
from lmcache.v1.distributed.serde.turboquant.slot import Field, KeyField


class Search(NamedTuple):
    """What to try for each vector of a field.

    Attributes:
        key_scales: As in ``Effort``, float32; empty for values.
        value_trims: Shares of the range, float32; empty for keys.
        centroids: ``[NUM_CENTROIDS, LANES]`` float32. Each centroid above zero;
            the highest is repeated.
        common: Bytes of the common errors of keys, ``[layers, heads, head_dim]``
            float32.
    """

    key_scales: np.ndarray
    value_trims: np.ndarray
    centroids: np.ndarray
    common: np.ndarray


def make_search(effort: Effort, field: Field, layers: int, heads: int) -> Search:
    """Write down what to try; the common errors are zeros as yet.

    Args:
        effort: What to try.
        field: Byte layout of a field that it searches.
        layers: Number of layers.
        heads: Heads of a layer.

    Returns:
        The arrays.
    """
    is_key = isinstance(field, KeyField)
    scales = effort.key_scales if is_key else ()
    trims = () if is_key else effort.value_trims
    centroids = np.zeros((NUM_CENTROIDS, LANES), np.float32)
    if is_key:
        above = tables.centroids(field.dim, field.bits).numpy()[2 ** (field.bits - 1) :]
        places = np.minimum(np.arange(NUM_CENTROIDS), len(above) - 1)
        centroids[:] = above[places, None]
    num_bytes = 4 * layers * heads * field.dim if is_key else 0
    return Search(
        key_scales=np.array(scales, np.float32),
        value_trims=np.array(trims, np.float32) / np.float32(2**field.bits),
        centroids=centroids,
        common=np.zeros(num_bytes, np.uint8),
    )


@Kernel
def estimate_common_errors(
    source: np.ndarray,
    plan: Plan,
    constants: Constants,
    search: Search,
    step: int,
    first_layer: int,
    last_layer: int,
    revision: int = SOURCE_REVISION,
) -> None:
    """Estimate the errors of the layers from ``first_layer`` to ``last_layer``.

    Lanes are heads; those past the last one repeat it.

    Args:
        source: Bytes of the keys.
        plan: Where they are.
        constants: Tables of the compressed layers.
        search: Its ``common`` receives the errors.
        step: From a token of the sample to the next.
        first_layer: First layer, counted from the first compressed one.
        last_layer: Layer after the last one.
        revision: See ``Kernel``.
    """
    head_dim = plan.dim
    tile = np.empty((head_dim, LANES), dtype=np.float32)
    scratch, total = np.empty_like(tile), np.empty_like(tile)
    heads_at = np.empty(LANES, dtype=np.int64)
    rows_at = np.empty(LANES, dtype=np.int64)
    common_at = np.empty(LANES, dtype=np.int64)
    for layer in range(first_layer, last_layer):
        layer_at = plan.rows_offset + layer * plan.layer_stride
        for first_head in range(0, plan.num_heads, LANES):
            for lane in range(LANES):
                head = min(first_head + lane, plan.num_heads - 1)
                heads_at[lane] = layer_at + head * plan.head_stride
                common_at[lane] = (layer * plan.num_heads + head) * head_dim * 4
            for dim in range(head_dim):
                put(total, dim, floats(0.0))
            count = energy = floats(0.0)
            for token in range(0, plan.num_tokens, step):
                for lane in range(LANES):
                    rows_at[lane] = heads_at[lane] + token * plan.token_stride
                load_rows(source, rows_at, plan.number_format, tile)
                norms = row_norms(tile, scratch)
                rotate_directions(tile, scratch, norms, layer, constants)
                counted = select(norms < np.inf, floats(1.0), floats(0.0))
                count = count + counted
                energy = energy + _add_errors(
                    tile, scratch, total, norms, constants.thresholds, search.centroids
                )
            _keep_common_part(total, scratch, count, energy)
            store_rows(total, FLOAT32, search.common, common_at)


@part
def rotate_directions(
    tile: np.ndarray,
    scratch: np.ndarray,
    norms: Floats,
    layer: int,
    constants: Constants,
) -> None:
    """Replace keys by their rotated directions.

    Args:
        tile: ``[head_dim, LANES]`` float32.
        scratch: Of the same shape.
        norms: Norms of the keys.
        layer: Their layer, counted from the first compressed one.
        constants: Tables of the compressed layers.
    """
    divisors = select(norms > 0.0, norms, floats(1.0))
    for dim in range(tile.shape[0]):
        put(tile, dim, get(tile, dim) / divisors * constants.signs[layer, dim])
    scale = mix(tile, scratch, constants.hartley, constants.scale)
    for dim in range(tile.shape[0]):
        put(tile, dim, get(tile, dim) * scale)


@part
def _add_errors(
    directions: np.ndarray,
    scratch: np.ndarray,
    total: np.ndarray,
    norms: Floats,
    thresholds: np.ndarray,
    centroids: np.ndarray,
) -> Floats:
    """Add the plain rule's errors to a total; return their squared lengths."""
    limits = get_rows(thresholds, 0, 1, NUM_BOUNDARIES)
    magnitudes = get_rows(centroids, 0, 1, NUM_CENTROIDS)
    for dim in range(directions.shape[0]):
        restored = nearest_centroids(get(directions, dim), limits, magnitudes)
        put(scratch, dim, restored * restored)
    lengths = square_root(row_sums(scratch, scratch))
    is_finite = norms < np.inf
    for dim in range(directions.shape[0]):
        direction = get(directions, dim)
        restored = nearest_centroids(direction, limits, magnitudes) / lengths
        error = select(is_finite, (restored - direction) * norms, floats(0.0))
        put(total, dim, get(total, dim) + error)
        put(scratch, dim, error * error)
    return row_sums(scratch, scratch)


@part
def _keep_common_part(
    total: np.ndarray, scratch: np.ndarray, count: Floats, energy: Floats
) -> None:
    """Replace a sum of errors by their mean, less what chance would leave of it."""
    counts = select(count > 1.0, count, floats(1.0))
    for dim in range(total.shape[0]):
        mean = get(total, dim) / counts
        put(total, dim, mean)
        put(scratch, dim, mean * mean)
    square = row_sums(scratch, scratch)
    others = select(count > 2.0, count - 1.0, floats(1.0))
    chance = (energy / counts - square) / others
    kept = floats(1.0) - chance / square
    kept = select(kept > 0.0, kept, floats(0.0))
    kept = select(kept < 1.0, kept, floats(1.0))
    kept = select(square > 0.0, kept, floats(0.0))
    kept = select(count > 1.0, kept, floats(0.0))
    for dim in range(total.shape[0]):
        put(total, dim, saturate(get(total, dim) * kept))


@part
def load_common_errors(
    plan: Plan,
    search: Search,
    tile_index: int,
    common_at: np.ndarray,
    tile: np.ndarray,
) -> None:
    """Fill a tile with the common errors of the head vectors of ``locate_tile``.

    Args:
        plan: Where head vectors are.
        search: The errors.
        tile_index: Tile, counted over all compressed layers.
        common_at: Scratch, ``LANES`` int64.
        tile: ``[head_dim, LANES]`` float32.
    """
    num_rows = plan.num_tokens * plan.num_heads
    tiles_per_layer = (num_rows + LANES - 1) // LANES
    layer = tile_index // tiles_per_layer
    first_row = tile_index % tiles_per_layer * LANES
    for lane in range(LANES):
        head = min(first_row + lane, num_rows - 1) % plan.num_heads
        common_at[lane] = (layer * plan.num_heads + head) * plan.dim * 4
    load_rows(search.common, common_at, FLOAT32, tile)
