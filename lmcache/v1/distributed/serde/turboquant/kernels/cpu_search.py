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
    truncate,
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
    sum_rows,
)

NUM_SCRATCH_TILES = 3


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
    return sum_rows(products) / square_root(sum_rows(squares))


@part
def search_range(
    tile: np.ndarray,
    lowest: Floats,
    highest: Floats,
    top_level: np.float32,
    trims: np.ndarray,
    num_fits: int,
    scratch: np.ndarray,
) -> tuple[Ints, Ints]:
    """Find the scales and zero points of the least squared errors.

    Args:
        tile: ``[head_dim, LANES]`` float32.
        lowest: The vectors' least elements.
        highest: Their greatest elements.
        top_level: The highest level.
        trims: ``Search.value_trims``; none: the plain rule.
        num_fits: ``Search.value_fits``.
        scratch: ``[NUM_SCRATCH_TILES, head_dim, LANES]`` float32.

    Returns:
        Codes of float16.
    """
    spans = highest - lowest
    scales, zeros = to_float16(spans / top_level), to_float16(lowest)
    if not len(trims):
        return scales, zeros
    best_scales, best_zeros, least = scales, zeros, floats(np.inf)
    for trial in range(len(trims) + 1):
        if trial > 0:
            margins = spans * trims[trial - 1]
            scales = to_float16((spans - margins * 2.0) / top_level)
            zeros = to_float16(lowest + margins)
        for _ in range(num_fits + 1):
            errors, fitted_scales, fitted_zeros = _measure(
                tile, scales, zeros, top_level, scratch
            )
            is_better = errors < least
            least = select(is_better, errors, least)
            best_scales = select(is_better, scales, best_scales)
            best_zeros = select(is_better, zeros, best_zeros)
            scales, zeros = fitted_scales, fitted_zeros
    return best_scales, best_zeros


@part
def _measure(
    tile: np.ndarray,
    scales: Ints,
    zeros: Ints,
    top_level: np.float32,
    scratch: np.ndarray,
) -> tuple[Floats, Ints, Ints]:
    """Return the squared errors, and the scales and zeros that fit the levels."""
    squares, residues, products = scratch[0], scratch[1], scratch[2]
    steps, bases = from_float16(scales), from_float16(zeros)
    divisors = select(steps > 0.0, steps, floats(np.inf))
    # Sums of levels and of their squares are exact in any order.
    sum_levels = sum_squares = floats(0.0)
    for dim in range(tile.shape[0]):
        number = get(tile, dim)
        level = to_floats(value_levels(number, bases, divisors, top_level))
        error = number - (level * steps + bases)
        put(squares, dim, error * error)
        put(residues, dim, error)
        put(products, dim, level * error)
        sum_levels = sum_levels + level
        sum_squares = sum_squares + level * level
    dims = np.float32(tile.shape[0])
    sum_errors = sum_rows(residues)
    variance = sum_squares - sum_levels * sum_levels / dims
    slope = sum_rows(products) - sum_levels * sum_errors / dims
    slope = select(variance > 0.0, slope / variance, floats(0.0))
    shift = (sum_errors - slope * sum_levels) / dims
    return sum_rows(squares), to_float16(steps + slope), to_float16(bases + shift)


@part
def value_levels(
    numbers: Floats, bases: Floats, divisors: Floats, top_level: np.float32
) -> Ints:
    """Choose the nearest levels; 0 for NaN.

    Args:
        numbers: One element of each vector.
        bases: The zero points.
        divisors: The scales; infinity where a scale is not above 0.
        top_level: The highest level.

    Returns:
        The levels.
    """
    levels = (numbers - bases) / divisors + 0.5
    # The first choice is made against NaN too: it becomes level 0.
    levels = select(levels > 0.0, levels, floats(0.0))
    levels = select(levels < top_level, levels, floats(top_level))
    return truncate(levels)
