# SPDX-License-Identifier: Apache-2.0
"""Head vectors to slots on the CPU by search, a tile at a time.

A kernel of its own: the plain rule would be slower in one that can search too.
"""

# Standard
from collections.abc import Callable
from functools import partial

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.effort import Effort
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_codebook import to_indices
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_common import (
    Search,
    estimate_common_errors,
    load_common_errors,
    make_search,
    rotate_directions,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    SOURCE_REVISION,
    Kernel,
    part,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    floats,
    ints,
    select,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
    write_halves,
    write_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import to_float16
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    NUM_BOUNDARIES,
    VALUE,
    Constants,
    Plan,
    make_constants,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rotation import row_norms
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rows import (
    load_rows,
    locate_tile,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_search import (
    NUM_SCRATCH_TILES,
    search_range,
    search_scale,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_threads import run
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_values import (
    extremes,
    write_values,
)
from lmcache.v1.distributed.serde.turboquant.search import sample_step
from lmcache.v1.distributed.serde.turboquant.slot import Field


def searching_work(
    source: np.ndarray,
    payload: np.ndarray,
    plan: Plan,
    field: Field,
    layers: range,
    effort: Effort,
    threads: int,
) -> Callable[..., None]:
    """Prepare the encoding of a field: estimate the errors that keys share.

    Args:
        source: Bytes of the head vectors.
        payload: Bytes of the payload.
        plan: Where head vectors and fields are.
        field: Byte layout of a field that ``effort`` searches.
        layers: Indices of the layers within the tensor.
        effort: What to try.
        threads: Threads to work with, as in ``cpu_threads.run``.

    Returns:
        What encodes the tiles from one to before another.
    """
    constants = make_constants(field, layers)
    search = make_search(effort, field, len(layers), plan.num_heads)
    if plan.kind != VALUE:
        step = sample_step(plan.num_tokens)
        estimate = partial(
            estimate_common_errors, source, plan, constants, search, step
        )
        run([partial(estimate, i, i + 1) for i in range(len(layers))], threads)
    return partial(search_tiles, source, payload, plan, constants, search)


@Kernel
def search_tiles(
    source: np.ndarray,
    payload: np.ndarray,
    plan: Plan,
    constants: Constants,
    search: Search,
    first_tile: int,
    last_tile: int,
    revision: int = SOURCE_REVISION,
) -> None:
    """Encode one field of the tiles from ``first_tile`` to before ``last_tile``.

    Args:
        source: Bytes of the head vectors.
        payload: Bytes of the payload.
        plan: Where head vectors and fields are.
        constants: Tables of the compressed layers.
        search: What to try.
        first_tile: First tile to encode.
        last_tile: Tile after the last one.
        revision: See ``Kernel``.
    """
    tile = np.empty((plan.dim, LANES), dtype=np.float32)
    scratch = np.empty((NUM_SCRATCH_TILES, plan.dim, LANES), dtype=np.float32)
    errors = np.empty_like(tile)
    rows_at = np.empty(LANES, dtype=np.int64)
    fields_at = np.empty(LANES, dtype=np.int64)
    common_at = np.empty(LANES, dtype=np.int64)
    for index in range(first_tile, last_tile):
        layer = locate_tile(plan, index, rows_at, fields_at)
        load_rows(source, rows_at, plan.number_format, tile)
        if plan.kind == VALUE:
            _encode_values(tile, scratch, plan, search, payload, fields_at)
        else:
            load_common_errors(plan, search, index, common_at, errors)
            norms = row_norms(tile, scratch[0])
            rotate_directions(tile, scratch[0], norms, layer, constants)
            shares = select(norms > 0.0, floats(1.0) / norms, floats(0.0))
            for dim in range(plan.dim):
                put(tile, dim, get(tile, dim) + get(errors, dim) * shares)
            _write_indices(tile, scratch, plan, constants, search, payload, fields_at)
            write_halves(payload, fields_at, plan.codes_bytes, to_float16(norms))
        if plan.padding_offset:
            for lane in range(LANES):
                payload[fields_at[lane] + plan.padding_offset] = 0


@part
def _write_indices(
    targets: np.ndarray,
    scratch: np.ndarray,
    plan: Plan,
    constants: Constants,
    search: Search,
    payload: np.ndarray,
    fields_at: np.ndarray,
) -> None:
    """Write the codebook indices that come closest to rotated vectors."""
    search_scale(
        targets, constants.thresholds, search.centroids, search.key_scales, scratch
    )
    thresholds = get_rows(constants.thresholds, 0, 1, NUM_BOUNDARIES)
    for group in range(plan.dim // LANES):
        word = ints(0)
        for i in range(LANES):
            coordinates = get(targets, group * LANES + i)
            indices = to_indices(coordinates, thresholds, plan.bits)
            word = word | (indices << (plan.bits * i))
        write_words(payload, fields_at, group * plan.bits, word)


@part
def _encode_values(
    tile: np.ndarray,
    scratch: np.ndarray,
    plan: Plan,
    search: Search,
    payload: np.ndarray,
    fields_at: np.ndarray,
) -> None:
    """Write the levels, scales and zero points of the least squared errors."""
    top_level = np.float32((1 << plan.bits) - 1)
    lowest, highest = extremes(tile)
    scales, zeros, bases, divisors = search_range(
        tile, lowest, highest, top_level, search.value_trims, scratch
    )
    write_values(tile, plan, scales, zeros, bases, divisors, payload, fields_at)
