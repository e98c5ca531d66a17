# SPDX-License-Identifier: Apache-2.0
"""Codes of low-bit keys to the directions that they stand for, on tiles."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_codebook import (
    from_indices,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import LANES
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get_rows,
    put,
    read_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    NUM_CENTROIDS,
    Constants,
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis_levels import (
    read_trellis_levels,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis_tables import (
    TrellisTables,
)


@part
def read_directions(
    payload: np.ndarray,
    fields_at: np.ndarray,
    plan: Plan,
    constants: Constants,
    tile: np.ndarray,
) -> None:
    """Look up directions, which have any length.

    Args:
        payload: Bytes of the payload.
        fields_at: Where fields are.
        plan: What they hold.
        constants: Tables of the compressed layers.
        tile: ``[head_dim, LANES]`` float32; every element is written.
    """
    _read_levels(
        *(payload, fields_at, plan.bits),
        *(constants.magnitudes, constants.trellis, tile),
    )


@part
def _read_levels(
    payload: np.ndarray,
    fields_at: np.ndarray,
    bits: int,
    centroids: np.ndarray,
    trellis: TrellisTables | None,
    tile: np.ndarray,
) -> None:
    """Look up directions; numba drops a branch on whether an argument is None."""
    if trellis is not None:
        read_trellis_levels(payload, fields_at, bits, trellis, tile)
        return
    magnitudes = get_rows(centroids, 0, 1, NUM_CENTROIDS)
    for group in range(tile.shape[0] // LANES):
        word = read_words(payload, fields_at, group * bits)
        for i in range(LANES):
            indices = word << (32 - bits * (i + 1))
            put(tile, group * LANES + i, from_indices(indices, magnitudes))
