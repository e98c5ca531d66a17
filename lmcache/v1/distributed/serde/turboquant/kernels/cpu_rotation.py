# SPDX-License-Identifier: Apache-2.0
"""Norms and the rotation, in the reference's order of operations."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    Floats,
    square_root,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    get_rows,
    put,
    put_rows,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_tuples import butterflies


@part
def row_norms(tile: np.ndarray, sums: np.ndarray) -> Floats:
    """Return the Euclidean norm of every head vector of a tile.

    Args:
        tile: ``[head_dim, LANES]`` float32; head_dim is a multiple of 8.
        sums: Scratch of the same shape.

    Returns:
        The norms.
    """
    width = tile.shape[0] // 8
    for i in range(width):
        x = get_rows(tile, i, width, 8)
        even = (x[0] * x[0] + x[4] * x[4]) + (x[2] * x[2] + x[6] * x[6])
        odd = (x[1] * x[1] + x[5] * x[5]) + (x[3] * x[3] + x[7] * x[7])
        put(sums, i, even + odd)
    return square_root(_total(sums, width))


@part
def row_sums(tile: np.ndarray, sums: np.ndarray) -> Floats:
    """Return the sum of the dimensions of every head vector of a tile.

    Args:
        tile: As in :func:`row_norms`.
        sums: Scratch of the same shape.

    Returns:
        The sums.
    """
    width = tile.shape[0] // 8
    for i in range(width):
        x = get_rows(tile, i, width, 8)
        even, odd = (x[0] + x[4]) + (x[2] + x[6]), (x[1] + x[5]) + (x[3] + x[7])
        put(sums, i, even + odd)
    return _total(sums, width)


@part
def _total(sums: np.ndarray, width: int) -> Floats:
    """Add up ``width`` rows as a tree of halves; they are overwritten."""
    while width % 2 == 0:
        width //= 2
        for i in range(width):
            put(sums, i, get(sums, i) + get(sums, i + width))
    total = get(sums, 0)
    for i in range(1, width):
        total = total + get(sums, i)
    return total


@part
def mix(
    tile: np.ndarray, scratch: np.ndarray, hartley: np.ndarray, scale: np.float32
) -> np.float32:
    """Multiply head vectors by the orthonormal ``W`` of ``reference.rotate``.

    The last factor of the power of two's part is left to the caller, who reads
    the result anyway.

    Args:
        tile: ``[head_dim, LANES]`` float32, replaced by the result.
        scratch: Of the same shape.
        hartley: Hartley matrix of head_dim's odd factor.
        scale: ``block ** -0.5`` of its power of two ``block``.

    Returns:
        What the result is still to be multiplied by.
    """
    order = hartley.shape[0]
    block = tile.shape[0] // order
    for first in range(0, tile.shape[0], block):
        _add_and_subtract(tile, first, block)
    if order == 1:
        return scale
    for dim in range(tile.shape[0]):
        put(scratch, dim, get(tile, dim) * scale)
    for row in range(order):
        for i in range(block):
            total = get(scratch, i) * hartley[row, 0]
            for column in range(1, order):
                mixed = get(scratch, column * block + i) * hartley[row, column]
                total = total + mixed
            put(tile, row * block + i, total)
    return np.float32(1)


@part
def _add_and_subtract(tile: np.ndarray, first: int, block: int) -> None:
    """Apply the butterflies of one block, halves from ``block / 2`` down to 1.

    Up to four halves share a load and a store; the last three always do, as a
    block has at least eight dimensions.
    """
    width = block
    while width > LANES:
        radix = min(16, width // LANES)
        stride = width // radix
        for group in range(first, first + block, width):
            for i in range(group, group + stride):
                _butterflies_in_place(tile, i, stride, radix)
        width = stride
    for i in range(first, first + block, LANES):
        _butterflies_in_place(tile, i, 1, LANES)


@part
def _butterflies_in_place(
    tile: np.ndarray, first: int, stride: int, radix: int
) -> None:
    """Apply the butterflies of ``radix`` rows of a tile, ``stride`` apart."""
    if radix == 16:
        put_rows(tile, first, stride, butterflies(get_rows(tile, first, stride, 16)))
    elif radix == 8:
        put_rows(tile, first, stride, butterflies(get_rows(tile, first, stride, 8)))
    elif radix == 4:
        put_rows(tile, first, stride, butterflies(get_rows(tile, first, stride, 4)))
    else:
        put_rows(tile, first, stride, butterflies(get_rows(tile, first, stride, 2)))
