# SPDX-License-Identifier: Apache-2.0
"""Coordinates to codebook indices and back, on lanes, without a branch.

Codebooks are symmetric about zero, which is one of their boundaries: the top
bit of an index is the sign, and magnitudes are looked up. The bits below count
centroids away from zero above it, and towards zero below it.
"""

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    Floats,
    Ints,
    as_floats,
    as_ints,
    ints,
    minus_one_where,
    select,
)

_TOP_BIT = -(2**31)
_ALL_BITS = -1


@part
def to_indices(coordinates: Floats, thresholds: tuple[Ints, ...], bits: int) -> Ints:
    """Count the boundaries at or below each coordinate; all of them for NaN.

    A negative coordinate that equals a boundary is not past it in magnitude,
    unlike a positive one: one less is compared.

    Args:
        coordinates: What to look up.
        thresholds: ``Constants.thresholds``, one tuple entry a boundary.
        bits: Bits an index.

    Returns:
        The indices.
    """
    negative = minus_one_where(coordinates < 0.0)
    magnitude = (as_ints(coordinates) & ~_TOP_BIT) + negative
    indices = ints(1 << (bits - 1))
    for threshold in thresholds:
        indices = indices - minus_one_where(magnitude > threshold)
    return (indices ^ negative) & ((1 << bits) - 1)


@part
def nearest_centroids(
    coordinates: Floats, thresholds: tuple[Ints, ...], magnitudes: tuple[Floats, ...]
) -> Floats:
    """Look up the centroid of each coordinate's index; the highest for NaN.

    Args:
        coordinates: What to look up.
        thresholds: As in :func:`to_indices`.
        magnitudes: One centroid above zero more than thresholds, the lowest first.

    Returns:
        The centroids.
    """
    negative = minus_one_where(coordinates < 0.0)
    magnitude = (as_ints(coordinates) & ~_TOP_BIT) + negative
    centroids = magnitudes[0]
    for place in range(len(thresholds)):
        is_past = magnitude > thresholds[place]
        centroids = select(is_past, magnitudes[place + 1], centroids)
    return as_floats(as_ints(centroids) | (negative & _TOP_BIT))


@part
def from_indices(indices: Ints, magnitudes: tuple[Floats, ...]) -> Floats:
    """Look up centroids.

    Where an index has fewer than four bits, the magnitudes between which the
    bits after it choose are equal.

    Args:
        indices: Indices in the top bits of their lanes; any bits may follow.
        magnitudes: ``Constants.magnitudes``, one tuple entry a centroid.

    Returns:
        The centroids.
    """
    sign = (indices & _TOP_BIT) ^ _TOP_BIT
    place = select(indices < 0, indices, indices ^ _ALL_BITS)
    bit0, bit1, bit2 = (place << 3) < 0, (place << 2) < 0, (place << 1) < 0
    pair0 = select(bit0, magnitudes[1], magnitudes[0])
    pair1 = select(bit0, magnitudes[3], magnitudes[2])
    pair2 = select(bit0, magnitudes[5], magnitudes[4])
    pair3 = select(bit0, magnitudes[7], magnitudes[6])
    near, far = select(bit1, pair1, pair0), select(bit1, pair3, pair2)
    return as_floats(as_ints(select(bit2, far, near)) | sign)
