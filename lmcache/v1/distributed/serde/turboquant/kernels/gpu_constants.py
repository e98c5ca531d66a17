# SPDX-License-Identifier: Apache-2.0
"""Constants of the kernels, derived from :mod:`tables`; needs no Triton."""

# Standard
from fractions import Fraction
from functools import lru_cache
import math

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables

ROTATION_WIDTH = 32
"""Widest block that one matrix product rotates; wider heads combine blocks."""

FRAGMENT_RUN = 2
"""Neighbouring columns that a thread holds in fragments of a matrix product."""

JOINED_RUN = 4
"""The same for a factor that was joined from parts: Triton doubles it."""

SIGN_BIT = -0x8000
"""The sign bit of a 16-bit float, as int16."""

CENTROID_SCALE = {2: 1.9875, 3: 1.14449, 4: 1.260155}
"""Factors at which float16 represents the codebook of N(0, 1) best.

The decoder divides by the norm of the centroid vector, so that any factor may
be used. Rounding to float16 moves these centroids by 1e-6 (2 bits), 7e-6 (3) and 6e-5
(4) of a coordinate's standard deviation, unscaled ones by 2e-4 to 3e-4.
"""


def rotation_width(head_dim: int) -> int:
    """Return the power of two that one matrix product rotates."""
    return min(head_dim & -head_dim, ROTATION_WIDTH)


def lane_order(width: int, run: int) -> torch.Tensor:
    """Return the dimension that each column of a matrix product stands for.

    In a tensor core's fragments thread ``t`` of four holds runs of columns
    ``4 run j + run t + b``. They stand for ``width / 4`` dimensions in a row, so
    that a thread loads, packs and stores whole words.

    Args:
        width: Columns, a multiple of ``4 * run``.
        run: Neighbouring columns that a thread holds.

    Returns:
        int64 tensor ``[width]``.
    """
    dimensions = torch.arange(width).view(4, width // (4 * run), run)
    return dimensions.transpose(0, 1).flatten()


def rotation_unit(width: int) -> float:
    """Return the power of two that stands for 1 in :func:`rotation_matrix`.

    At most ``width ** -0.5``, so that products cannot overflow where the
    rotated coordinate does not.
    """
    return 2.0 ** -((width.bit_length()) // 2)


@lru_cache(maxsize=64)
def rotation_matrix(
    width: int, run: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the Hadamard matrix with entries plus or minus ``rotation_unit``.

    Args:
        width: Rows and columns, a power of two.
        run: Run of the rows' lane order; the columns' is ``FRAGMENT_RUN``.
        dtype: float16 or bfloat16; either holds the entries exactly.
        device: Where to put it.

    Returns:
        Tensor ``[width, width]``.
    """
    matrix = torch.ones(1, 1)
    while len(matrix) < width:
        matrix = torch.cat(
            [torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)]
        )
    ordered = matrix[lane_order(width, run)][:, lane_order(width, FRAGMENT_RUN)]
    return (ordered * rotation_unit(width)).to(dtype).to(device)


@lru_cache(maxsize=64)
def sign_masks(head_dim: int, num_layers: int, device: torch.device) -> torch.Tensor:
    """Return the rotation signs of the first layers as bit masks.

    Args:
        head_dim: Dimensions of a head vector.
        num_layers: Layers to cover.
        device: Where to put them.

    Returns:
        int16 tensor ``[num_layers, head_dim]``: the sign bit where -1, else 0.
    """
    signs = torch.stack(
        [tables.rotation_signs(head_dim, layer) for layer in range(num_layers)]
    )
    return ((signs < 0) * SIGN_BIT).to(torch.int16).to(device)


@lru_cache(maxsize=16)
def rotary(
    head_dim: int, theta: float, num_tokens: int, device: torch.device
) -> torch.Tensor:
    """Return ``tables.rotary`` as one table.

    Args:
        head_dim: Dimensions of a head vector.
        theta: Base of the rotary embedding.
        num_tokens: Tokens.
        device: Where to put it.

    Returns:
        float32 tensor ``[num_tokens, head_dim]``: cosines, then sines of each token.
    """
    return torch.cat(tables.rotary(head_dim, theta, num_tokens), dim=1).to(device)


def hartley_entries(head_dim: int) -> tuple[float, ...]:
    """Return the Hartley matrix of the odd factor, row by row."""
    rows = tables.hartley(head_dim // (head_dim & -head_dim))
    return tuple(entry for row in rows for entry in row)


def energy_unit(head_dim: int) -> float:
    """Return by what to multiply squares of rows that the kernels rotated.

    They rotate by a multiple of ``reference.rotate``; the square of the factor
    is a power of two.
    """
    block = head_dim & -head_dim
    return 1.0 / (block * rotation_unit(rotation_width(head_dim)) ** 2)


def index_factor(head_dim: int, bits: int) -> float:
    """Return what makes coordinates of unit rows multiples of ``index_unit``."""
    return math.sqrt(head_dim) / index_unit(bits)


def index_unit(bits: int) -> float:
    """Return minus twice a coordinate inside the outermost cell of N(0, 1).

    All coordinates beyond half of it have the same index.
    """
    return -2.1 * float(_unit_boundaries(bits)[-1])


@lru_cache(maxsize=64)
def index_polynomial(bits: int) -> tuple[float, ...]:
    """Return ``g`` such that ``floor(v g(v v))`` counts boundaries below ``v``.

    The odd polynomial ``v g(v v)`` takes the value ``k`` at the ``k``-th
    positive boundary of the codebook of N(0, 1), given in multiples of
    :func:`index_unit`, and is monotonic everywhere. Solved in rational numbers:
    the same coefficients on every machine.

    Args:
        bits: Bits an index.

    Returns:
        Coefficients, that of the highest power first.
    """
    unit = Fraction(index_unit(bits))
    bounds = [Fraction(float(number)) / unit for number in _unit_boundaries(bits)]
    ranks = [Fraction(rank) for rank in range(1, len(bounds) + 1)]
    return _odd_polynomial(bounds, ranks)


@lru_cache(maxsize=64)
def centroid_polynomial(bits: int) -> tuple[float, ...]:
    """Return ``g`` such that ``t g(t t)`` is a centroid of N(0, 1).

    ``t`` is the index, less that of the middle, over half the number of indices.

    Args:
        bits: Bits an index.

    Returns:
        Coefficients, that of the highest power first.
    """
    half = 2 ** (bits - 1)
    places = [Fraction(2 * rank + 1, 2 * half) for rank in range(half)]
    codebook = _unit_codebook(bits)[half:]
    return _odd_polynomial(places, [Fraction(float(number)) for number in codebook])


@lru_cache(maxsize=64)
def centroid_terms(bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the scaled codebook as a sum of two float16 numbers.

    Args:
        bits: Bits an index.

    Returns:
        Bit patterns of the rounded centroids, and of what rounding left.
    """
    codebook = _unit_codebook(bits) * CENTROID_SCALE[bits]
    high = codebook.astype(np.float16)
    low = (codebook - high).astype(np.float16)
    return tuple(high.view(np.uint16).tolist()), tuple(low.view(np.uint16).tolist())


def _unit_codebook(bits: int) -> np.ndarray:
    """Return the ascending codebook of N(0, 1)."""
    return tables.centroids(1, bits).double().numpy()


def _unit_boundaries(bits: int) -> np.ndarray:
    """Return the positive boundaries of the codebook of N(0, 1)."""
    return tables.boundaries(1, bits).double().numpy()[2 ** (bits - 1) :]


def _odd_polynomial(
    points: list[Fraction], values: list[Fraction]
) -> tuple[float, ...]:
    """Return ``g``, highest power first, so that ``x g(x x)`` runs through points."""
    coefficients = [Fraction(0)] * len(points)
    product = [Fraction(1)]
    for point, value in zip(points, values, strict=True):
        square = point * point
        missing = value / point - _evaluate(coefficients, square)
        step = missing / _evaluate(product, square)
        for power, factor in enumerate(product):
            coefficients[power] += step * factor
        raised = [Fraction(0), *product]
        scaled = [square * factor for factor in product] + [Fraction(0)]
        product = [a - b for a, b in zip(raised, scaled, strict=True)]
    return tuple(float(number) for number in reversed(coefficients))


def _evaluate(coefficients: list[Fraction], point: Fraction) -> Fraction:
    """Evaluate a polynomial, lowest power first."""
    return sum(
        (factor * point**power for power, factor in enumerate(coefficients)),
        Fraction(0),
    )
