# SPDX-License-Identifier: Apache-2.0
"""What the CPU kernels are told of a trellis code."""

# Standard
from typing import NamedTuple

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant import tables, trellis
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import LANES

NUM_MAGNITUDES = 16
"""Levels above zero at 4 bits; levels are symmetric."""

NUM_EDGES = NUM_MAGNITUDES - trellis.NUM_SUBSETS // 2
"""Levels above zero that a coordinate's window moves on at."""


class TrellisTables(NamedTuple):
    """Tables of a field of trellis codes.

    Attributes:
        edges: ``[NUM_EDGES, LANES]`` int32. For each level above zero but the two
            highest, the float32 bits of the largest number below it; then the
            largest int32.
        windows: ``[windows, NUM_SUBSETS]`` float32. For each of the levels that has
            three above it, the level of each subset among the four.
        magnitudes: ``[NUM_MAGNITUDES, LANES]`` float32. Each level above zero, so
            that two bits of the member below its sign, if it has as many, and two of
            the subset choose one.
        reach: Where a row's peak is moved to; 0: it stays.
        least_gain: The least factor of a row.
        greatest_gain: The greatest.
    """

    edges: np.ndarray
    windows: np.ndarray
    magnitudes: np.ndarray
    reach: np.float32
    least_gain: np.float32
    greatest_gain: np.float32


def make_trellis_tables(dim: int, bits: int) -> TrellisTables:
    """Gather the tables of a field.

    Args:
        dim: Dimensions of its vectors.
        bits: Bits a code.

    Returns:
        The tables.
    """
    levels = tables.trellis_levels(dim, bits).numpy()
    above_zero = levels[len(levels) // 2 :]
    starts = np.arange(len(levels) - trellis.NUM_SUBSETS + 1)[:, None]
    subsets = np.arange(trellis.NUM_SUBSETS)
    members = above_zero.reshape(-1, trellis.NUM_SUBSETS)
    repeated = members.repeat(NUM_MAGNITUDES // len(above_zero), axis=0)
    return TrellisTables(
        edges=_edges(above_zero),
        windows=levels[starts + (subsets - starts) % trellis.NUM_SUBSETS],
        magnitudes=repeated.reshape(-1, 1).repeat(LANES, axis=1),
        reach=np.float32(trellis.REACH.get(bits, 0.0) * dim**-0.5),
        least_gain=np.float32(trellis.LEAST_GAIN),
        greatest_gain=np.float32(trellis.GREATEST_GAIN),
    )


def _edges(above_zero: np.ndarray) -> np.ndarray:
    """Return ``TrellisTables.edges`` of the levels above zero."""
    moving = above_zero[: -trellis.NUM_SUBSETS // 2]
    edges = np.full((NUM_EDGES, LANES), np.iinfo(np.int32).max, np.int32)
    edges[: len(moving)] = moving.view(np.int32)[:, None] - 1
    return edges
