# SPDX-License-Identifier: Apache-2.0
"""Uniform levels of values, on tiles."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    Floats,
    Ints,
    floats,
    ints,
    select,
    truncate,
    unordered,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    write_halves,
    write_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import Plan
from lmcache.v1.distributed.serde.turboquant.slot import FP16_BYTES


@part
def extremes(tile: np.ndarray) -> tuple[Floats, Floats]:
    """Return the lowest and highest dimension; NaN if one is; zero is +0.

    Args:
        tile: ``[head_dim, LANES]`` float32.

    Returns:
        Both, of each vector.
    """
    lowest = highest = get(tile, 0)
    strange = unordered(lowest, lowest)
    for dim in range(1, tile.shape[0]):
        numbers = get(tile, dim)
        lowest = select(numbers < lowest, numbers, lowest)
        highest = select(numbers > highest, numbers, highest)
        strange = strange | unordered(numbers, numbers)
    nan = floats(np.nan)
    return select(strange, nan, lowest + 0.0), select(strange, nan, highest)


@part
def divisors_of(steps: Floats) -> Floats:
    """Return what distances are divided by to count steps: infinity for no step."""
    return select(steps > 0.0, steps, floats(np.inf))


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


@part
def write_values(
    tile: np.ndarray,
    plan: Plan,
    scales: Ints,
    zeros: Ints,
    bases: Floats,
    divisors: Floats,
    payload: np.ndarray,
    fields_at: np.ndarray,
) -> None:
    """Write levels, scales and zero points.

    Args:
        tile: ``[head_dim, LANES]`` float32.
        plan: Byte layout of the field.
        scales: float16 codes.
        zeros: float16 codes.
        bases: As in :func:`value_levels`.
        divisors: As in :func:`value_levels`.
        payload: Bytes of the payload.
        fields_at: Byte offsets of the vectors' fields.
    """
    bits = plan.bits
    top_level = np.float32((1 << bits) - 1)
    for group in range(tile.shape[0] // LANES):
        word = ints(0)
        for i in range(LANES):
            numbers = get(tile, group * LANES + i)
            levels = value_levels(numbers, bases, divisors, top_level)
            word = word | (levels << (bits * i))
        write_words(payload, fields_at, group * bits, word)
    write_halves(payload, fields_at, plan.codes_bytes, scales)
    write_halves(payload, fields_at, plan.codes_bytes + FP16_BYTES, zeros)
