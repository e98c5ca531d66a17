# SPDX-License-Identifier: Apache-2.0
"""The CPU's branch-free codebook search and look-up against torch."""

# Third Party
from numba import njit
import numpy as np
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_codebook import (
    from_indices,
    to_indices,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import LANES
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    NUM_BOUNDARIES,
    NUM_CENTROIDS,
    make_constants,
)
from lmcache.v1.distributed.serde.turboquant.slot import KeyField

ALL_BITS = [1, 2, 3, 4]


@njit
def search(
    source: np.ndarray, target: np.ndarray, table: np.ndarray, bits: int
) -> None:
    """Look up the indices of rows of coordinates."""
    thresholds = get_rows(table, 0, 1, NUM_BOUNDARIES)
    for row in range(source.shape[0]):
        put(target, row, to_indices(get(source, row), thresholds, bits))


@njit
def look_up(source: np.ndarray, target: np.ndarray, table: np.ndarray) -> None:
    """Look up the centroids of rows of indices."""
    magnitudes = get_rows(table, 0, 1, NUM_CENTROIDS)
    for row in range(source.shape[0]):
        put(target, row, from_indices(get(source, row), magnitudes))


def constants_of(bits: int, head_dim: int):
    """Tables for keys of ``bits`` a dimension."""
    return make_constants(KeyField(bits=bits, dim=head_dim), range(1))


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 1024])
def test_search_at_and_beside_every_boundary(bits: int, head_dim: int) -> None:
    boundaries = tables.boundaries(head_dim, bits)
    edges = boundaries.numpy()
    neighbours = [np.nextafter(edges, np.float32(side)) for side in (-9, 9)]
    strange = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45])
    noise = np.random.RandomState(bits).standard_normal(4096) / np.sqrt(head_dim)
    numbers = np.concatenate([edges, *neighbours, strange, noise]).astype(np.float32)
    numbers = np.resize(numbers, (-(-numbers.size // LANES), LANES))
    indices = np.empty(numbers.shape, dtype=np.int32)
    search(numbers, indices, constants_of(bits, head_dim).thresholds, bits)
    expected = torch.bucketize(torch.from_numpy(numbers), boundaries, right=True)
    assert np.array_equal(indices, expected.numpy())


@pytest.mark.parametrize("bits", ALL_BITS)
def test_look_up_of_every_index_before_any_bits(bits: int) -> None:
    indices = np.arange(2**16, dtype=np.int32).reshape(-1, LANES)
    centroids = np.empty(indices.shape, dtype=np.float32)
    look_up(indices << 16, centroids, constants_of(bits, 128).magnitudes)
    expected = tables.centroids(128, bits).numpy()[indices >> (16 - bits)]
    assert np.array_equal(centroids, expected)
