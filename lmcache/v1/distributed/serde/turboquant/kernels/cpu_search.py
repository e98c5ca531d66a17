# SPDX-License-Identifier: Apache-2.0
"""What ``search`` specifies, on tiles: the numbers that codes are chosen for."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_codebook import (
    nearest_centroids,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    Floats,
    Ints,
    floats,
    select,
    square_root,
    to_floats,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
    from_float16,
    to_float16,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    NUM_BOUNDARIES,
    NUM_CENTROIDS,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rotation import (
    row_norms,
    row_sums,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_values import (
    divisors_of,
    value_levels,
)

NUM_SCRATCH_TILES = 2


@part
def search_scale(
    tile: np.ndarray,
    thresholds: np.ndarray,
    centroids: np.ndarray,
    factors: np.ndarray,
    scratch: np.ndarray,
) -> None:
    """Scale the vectors of a tile so that their codes restore them best.

    Args:
        tile: ``[head_dim, LANES]`` float32, replaced by the coordinates to look
            codes up for.
        thresholds: ``Constants.thresholds``.
        centroids: ``Search.centroids``.
        factors: ``Search.key_scales``.
        scratch: ``[NUM_SCRATCH_TILES, head_dim, LANES]`` float32.
    """
    lengths = row_norms(tile, scratch[0])
    divisors = select(lengths > 0.0, lengths, floats(1.0))
    for dim in range(tile.shape[0]):
        put(tile, dim, get(tile, dim) / divisors)
    best = floats(1.0)
    cosines = _cosines(tile, np.float32(1.0), thresholds, centroids, scratch)
    for factor in factors:
        found = _cosines(tile, factor, thresholds, centroids, scratch)
        is_better = found > cosines
        cosines = select(is_better, found, cosines)
        best = select(is_better, floats(factor), best)
    for dim in range(tile.shape[0]):
        put(tile, dim, get(tile, dim) * best)


@part
def _cosines(
    units: np.ndarray,
    factor: np.float32,
    thresholds: np.ndarray,
    centroids: np.ndarray,
    scratch: np.ndarray,
) -> Floats:
    """Return the cosines of directions and of what their codes restore."""
    products, squares = scratch[0], scratch[1]
    limits = get_rows(thresholds, 0, 1, NUM_BOUNDARIES)
    magnitudes = get_rows(centroids, 0, 1, NUM_CENTROIDS)
    for dim in range(units.shape[0]):
        unit = get(units, dim)
        restored = nearest_centroids(unit * factor, limits, magnitudes)
        put(products, dim, restored * unit)
        put(squares, dim, restored * restored)
    return row_sums(products, products) / square_root(row_sums(squares, squares))


@part
def search_range(
    tile: np.ndarray,
    lowest: Floats,
    highest: Floats,
    top_level: np.float32,
    trims: np.ndarray,
    scratch: np.ndarray,
) -> tuple[Ints, Ints, Floats, Floats]:
    """Find levels, scales and zero points of the least squared errors.

    Args:
        tile: ``[head_dim, LANES]`` float32.
        lowest: The vectors' least elements.
        highest: Their greatest elements.
        top_level: The highest level.
        trims: ``Search.value_trims``.
        scratch: ``[NUM_SCRATCH_TILES, head_dim, LANES]`` float32.

    Returns:
        Scales and zero points, float16 codes; and what levels are chosen by:
        ``bases`` and ``divisors`` of ``value_levels``.
    """
    spans = highest - lowest
    best_scales, best_zeros = to_float16(spans / top_level), to_float16(lowest)
    best_bases = from_float16(best_zeros)
    best_divisors = divisors_of(from_float16(best_scales))
    means, energies = _moments(tile, scratch[0])
    _project(tile, means, best_bases, best_divisors, top_level, scratch)
    least = _squared_errors(tile, best_scales, best_zeros, scratch)
    for low in trims:
        for high in trims:
            margins = spans * low
            divisors = divisors_of((spans - margins - spans * high) / top_level)
            bases = lowest + margins
            sums = _project(tile, means, bases, divisors, top_level, scratch)
            scales = select(sums[0] > 0.0, energies / sums[0], floats(0.0))
            scales = to_float16(scales)
            zeros = to_float16(means - from_float16(scales) * sums[1])
            errors = _squared_errors(tile, scales, zeros, scratch)
            is_better = errors < least
            least = select(is_better, errors, least)
            best_scales = select(is_better, scales, best_scales)
            best_zeros = select(is_better, zeros, best_zeros)
            best_bases = select(is_better, bases, best_bases)
            best_divisors = select(is_better, divisors, best_divisors)
    return best_scales, best_zeros, best_bases, best_divisors


@part
def _moments(tile: np.ndarray, sums: np.ndarray) -> tuple[Floats, Floats]:
    """Return the means of vectors and their squared distances from them."""
    for dim in range(tile.shape[0]):
        put(sums, dim, get(tile, dim))
    means = row_sums(sums, sums) / np.float32(tile.shape[0])
    for dim in range(tile.shape[0]):
        distance = get(tile, dim) - means
        put(sums, dim, distance * distance)
    return means, row_sums(sums, sums)


@part
def _project(
    tile: np.ndarray,
    means: Floats,
    bases: Floats,
    divisors: Floats,
    top_level: np.float32,
    scratch: np.ndarray,
) -> tuple[Floats, Floats]:
    """Choose levels, kept in ``scratch[0]``.

    Returns:
        The products of levels and distances from the means, and the mean levels.
    """
    levels, products = scratch[0], scratch[1]
    # Sums of levels are exact in any order.
    sum_levels = floats(0.0)
    for dim in range(tile.shape[0]):
        number = get(tile, dim)
        level = to_floats(value_levels(number, bases, divisors, top_level))
        put(levels, dim, level)
        put(products, dim, level * (number - means))
        sum_levels = sum_levels + level
    return row_sums(products, products), sum_levels / np.float32(tile.shape[0])


@part
def _squared_errors(
    tile: np.ndarray, scales: Ints, zeros: Ints, scratch: np.ndarray
) -> Floats:
    """Return the squared errors of what is restored from ``scratch[0]``."""
    levels, squares = scratch[0], scratch[1]
    steps, bases = from_float16(scales), from_float16(zeros)
    for dim in range(tile.shape[0]):
        error = get(tile, dim) - (get(levels, dim) * steps + bases)
        put(squares, dim, error * error)
    return row_sums(squares, squares)
