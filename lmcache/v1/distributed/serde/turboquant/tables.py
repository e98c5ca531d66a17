# SPDX-License-Identifier: Apache-2.0
"""Codebooks and rotation signs: constants, the same bits on every machine."""

# Standard
from functools import lru_cache
import math

# Third Party
import numpy as np
import torch

_POSITIVE_CENTROIDS = {
    1: (0.7978845608028654,),
    2: (0.452780034636492, 1.5104176084990955),
    3: (
        0.24509417894422167,
        0.7560052812058773,
        1.343909278505,
        2.1519457045369874,
    ),
    4: (
        0.128395029851147,
        0.3880482994902902,
        0.6567591185324634,
        0.9423404564869614,
        1.2562311973471771,
        1.6180463860218826,
        2.0690172265313866,
        2.732589570995163,
    ),
}
"""Positive half of the Lloyd-Max codebook of N(0, 1), by bits.

The fixed point of centroid = E[x | cell], boundary = midpoint (Max, 1960).
"""

_POSITIVE_TRELLIS_LEVELS = {
    2: (0.19388, 0.60095, 1.06657, 1.852008),
    3: (
        0.105787,
        0.301738,
        0.522815,
        0.748498,
        1.013013,
        1.326209,
        1.765761,
        2.44064,
    ),
    4: (
        0.054272,
        0.150512,
        0.259515,
        0.358437,
        0.471884,
        0.578436,
        0.699424,
        0.820447,
        0.956085,
        1.098355,
        1.26178,
        1.44961,
        1.677601,
        1.957467,
        2.312607,
        2.786726,
    ),
}
"""Positive half of the levels of the trellis code for N(0, 1), by bits.

The fixed point of level = mean of the coordinates that are given it, found on 49,152
Gaussian vectors of 128 dimensions.
"""

_SEED_BASE = 42
_SEED_LAYER_STRIDE = 1337
"""LMCache 0.5.6 seeds a layer's signs with ``42 + 1337 * layer``."""


@lru_cache(maxsize=64)
def centroids(head_dim: int, bits: int) -> torch.Tensor:
    """Return the codebook of N(0, 1 / head_dim).

    A coordinate of a uniformly rotated unit vector is close to that distribution
    (TurboQuant, arXiv 2504.19874, Lemma 1).

    Args:
        head_dim: Dimensions of a head vector.
        bits: Bits an index, 1 to 4.

    Returns:
        Ascending float32 tensor of ``2 ** bits`` centroids, on the CPU.

    Raises:
        ValueError: If there is no table for ``bits``.
    """
    return torch.from_numpy(
        _scaled(_POSITIVE_CENTROIDS, head_dim, bits).astype(np.float32)
    )


@lru_cache(maxsize=64)
def boundaries(head_dim: int, bits: int) -> torch.Tensor:
    """Return the midpoints between neighbouring centroids.

    A coordinate's index is the number of boundaries at or below it.

    Args:
        head_dim: Dimensions of a head vector.
        bits: Bits an index, 1 to 4.

    Returns:
        Ascending float32 tensor of ``2 ** bits - 1`` boundaries, on the CPU.

    Raises:
        ValueError: If there is no table for ``bits``.
    """
    codebook = _scaled(_POSITIVE_CENTROIDS, head_dim, bits)
    return torch.from_numpy(((codebook[1:] + codebook[:-1]) / 2).astype(np.float32))


@lru_cache(maxsize=64)
def trellis_levels(head_dim: int, bits: int) -> torch.Tensor:
    """Return the levels of the trellis code for N(0, 1 / head_dim).

    Args:
        head_dim: Dimensions of a head vector.
        bits: Bits an index, 2 to 4.

    Returns:
        Ascending float32 tensor of ``2 ** (bits + 1)`` levels, on the CPU; level
        ``i`` belongs to subset ``i % 4``.

    Raises:
        ValueError: If there is no table for ``bits``.
    """
    levels = _scaled(_POSITIVE_TRELLIS_LEVELS, head_dim, bits)
    return torch.from_numpy(levels.astype(np.float32))


@lru_cache(maxsize=1024)
def rotation_signs(head_dim: int, layer: int) -> torch.Tensor:
    """Return the random signs of a layer's rotation.

    They are the low bits of the MT19937 stream that torch's CPU generator
    draws from too, taken from NumPy's ``RandomState``, whose stream is frozen
    (NEP 19), so that a payload stays readable whatever torch changes.

    Args:
        head_dim: Dimensions of a head vector.
        layer: Index of the layer within the memory object.

    Returns:
        float32 tensor of ``head_dim`` entries +1 or -1, on the CPU.
    """
    generator = np.random.RandomState(_SEED_BASE + _SEED_LAYER_STRIDE * layer)
    draws = generator.randint(0, 2**32, size=head_dim, dtype=np.uint32)
    return torch.from_numpy((draws & 1).astype(np.float32) * 2 - 1)


@lru_cache(maxsize=16)
def rotary(
    head_dim: int, theta: float, num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rotary embedding's angles as cosines and sines.

    Dimensions ``i`` and ``i + head_dim / 2`` are a pair, which the embedding turns
    by ``theta ** (-2 * i / head_dim)`` from each token to the next.

    Args:
        head_dim: Dimensions of a head vector.
        theta: Base of the embedding.
        num_tokens: Tokens; the first has the angle 0.

    Returns:
        Two float32 tensors ``[num_tokens, head_dim / 2]``, on the CPU, rounded
        from float64.
    """
    pairs = np.arange(head_dim // 2, dtype=np.float64)
    angles = np.outer(np.arange(num_tokens), theta ** (-2 * pairs / head_dim))
    cosines, sines = np.cos(angles), np.sin(angles)
    return (
        torch.from_numpy(cosines.astype(np.float32)),
        torch.from_numpy(sines.astype(np.float32)),
    )


@lru_cache(maxsize=64)
def hartley(order: int) -> tuple[tuple[float, ...], ...]:
    """Return the orthonormal discrete Hartley matrix.

    Symmetric, its own inverse, and flat enough to mix ``order`` blocks whose
    number is not a power of two.

    Args:
        order: Rows and columns.

    Returns:
        Rows of ``(cos(t) + sin(t)) / sqrt(order)`` with
        ``t = 2 * pi * row * column / order``.
    """

    def entry(row: int, column: int) -> float:
        angle = 2 * math.pi * (row * column % order) / order
        return (math.cos(angle) + math.sin(angle)) / math.sqrt(order)

    return tuple(
        tuple(entry(row, column) for column in range(order)) for row in range(order)
    )


def _scaled(
    positive_halves: dict[int, tuple[float, ...]], head_dim: int, bits: int
) -> np.ndarray:
    """Return the ascending levels for N(0, 1 / head_dim) in float64."""
    if bits not in positive_halves:
        raise ValueError(
            f"No codebook of {bits!r} bits, expected one of {list(positive_halves)}"
        )
    positive = np.array(positive_halves[bits])
    return np.concatenate([-positive[::-1], positive]) / math.sqrt(head_dim)
