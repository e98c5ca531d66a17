# SPDX-License-Identifier: Apache-2.0
"""How far two correct codecs may be apart, derived from what each one rounds.

Upstream restores through float16: a low-bit key is rounded to float16 before
and after the inverse rotation, a value once; then either is rounded to the
dtype of the tensor. We compute in float32 and round to that dtype once.
Upstream's codebook comes from a trapezoid rule of 200 steps, ours is exact.
"""

# Standard
import math

# Third Party
from scipy.linalg import hadamard
from scipy.stats import norm
import numpy as np
import torch

UNIT_FLOAT16 = 2.0**-11
"""Largest relative error of rounding a number to float16."""

UNIT_FLOAT32 = 2.0**-24

SMALLEST_FLOAT16 = 2.0**-24
"""Distance of the float16 numbers nearest to zero."""

NORM_OFFSET = 1e-8
"""Upstream divides a key by its norm plus this."""

SMALLEST_SCALE = 1e-8
"""Upstream's smallest scale of a value row."""


def key_row_bound(dtype: torch.dtype, table_error: float) -> float:
    """Bound the distance of two restored low-bit keys, for keys of norm 1.

    Rounding to a precision of unit roundoff u moves a row by at most
    ``u / sqrt(3)`` of its norm, in root mean square, since errors are uniform
    within half a spacing. Codebooks that differ by ``table_error`` standard
    deviations, each ``1 / sqrt(head_dim)``, move a row of ``head_dim`` entries
    by at most ``table_error``.

    A single wrong bit of a single index moves a row by at least the smallest
    gap of the codebook, ``0.2568 / sqrt(head_dim)``: 0.016 at 4 bits and
    head_dim 256. The bound is 0.0025 for float16 and 0.0068 for bfloat16; the
    farthest rows of the cases come to 0.25 and 0.38 of it.

    Args:
        dtype: Element type of the restored tensors.
        head_dim: Dimensions of a head vector.
        table_error: Largest difference of the codebooks, in standard
            deviations.

    Returns:
        The bound on the Euclidean distance.
    """
    unit = torch.finfo(dtype).eps / 2
    upstream_units = 2 * UNIT_FLOAT16 + (0 if dtype == torch.float16 else unit)
    return table_error + (upstream_units + unit) / math.sqrt(3)


def key_row_floor(head_dim: int) -> float:
    """Bound the distance of two restored keys however small: float16 underflows."""
    return math.sqrt(head_dim) * SMALLEST_FLOAT16


def value_bounds(restored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bound the distance of two restored values, element by element.

    The float32 sums ``level * scale + zero`` differ by a rounding of the
    product, where one side fuses the multiplication and the addition; rounding
    them to the tensor's dtype, through float16 on one side, then parts them by
    one spacing at most, or by a rounding to float16 where that is coarser.

    Args:
        restored: Restored values ``[..., head_dim]``, as float64.
        dtype: Element type that they were restored to.

    Returns:
        float64 bounds of the same shape.
    """
    magnitudes = restored.abs()
    spacing = max(torch.finfo(dtype).eps, UNIT_FLOAT16)
    largest = magnitudes.amax(dim=-1, keepdim=True)
    return spacing * magnitudes + 2 * UNIT_FLOAT32 * largest + SMALLEST_FLOAT16


def rotated_units(keys: np.ndarray, layer: int) -> np.ndarray:
    """Rotate normalised keys in float64, zero keys excepted.

    Args:
        keys: float64 array ``[..., head_dim]``.
        layer: Index of the layer within the object.

    Returns:
        float64 array of the same shape.
    """
    head_dim = keys.shape[-1]
    generator = torch.Generator().manual_seed(42 + 1337 * layer)
    signs = torch.randint(0, 2, (head_dim,), generator=generator).numpy() * 2 - 1
    norms = np.linalg.norm(keys, axis=-1, keepdims=True)
    units = keys / np.where(norms > 0, norms, 1)
    return (units * signs) @ hadamard(head_dim) / math.sqrt(head_dim)


def coordinate_slack(keys: np.ndarray) -> np.ndarray:
    """Bound what float32 arithmetic does to a coordinate of a rotated unit key.

    A sum of n products of entries of two vectors of norm 1 and 1 is off by at
    most n units; normalising adds four, and upstream's offset of the norm
    shrinks the key.

    Args:
        keys: float64 array ``[..., head_dim]``.

    Returns:
        float64 array ``[..., 1]``.
    """
    norms = np.linalg.norm(keys, axis=-1, keepdims=True)
    arithmetic = (keys.shape[-1] + 4) * UNIT_FLOAT32
    return arithmetic + NORM_OFFSET / (norms + NORM_OFFSET)


def disagreement_rate(ours: np.ndarray, upstream: np.ndarray) -> float:
    """Return the share of indices that the difference of the boundaries moves.

    Args:
        ours: Our boundaries for coordinates of N(0, 1).
        upstream: Upstream's.

    Returns:
        Probability that a coordinate lies between the two of a pair.
    """
    return float(np.abs(norm.cdf(upstream) - norm.cdf(ours)).sum())


def value_positions(values: np.ndarray, bits: int) -> np.ndarray:
    """Return where values lie between the levels of their rows, in float64.

    Args:
        values: float64 array ``[..., head_dim]``.
        bits: Bits a level.

    Returns:
        float64 array of the same shape, from 0 to ``2 ** bits - 1``.
    """
    lowest = values.min(axis=-1, keepdims=True)
    span = values.max(axis=-1, keepdims=True) - lowest
    return (values - lowest) / np.maximum(span / (2**bits - 1), SMALLEST_SCALE)


POSITION_SLACK = 16 * 8 * UNIT_FLOAT32
"""What float32 does to a position below 16: a GPU's division is off by 2 ulp."""


def stored_position_slack(values: np.ndarray, bits: int) -> np.ndarray:
    """Bound how far rounding scale and zero to float16 moves positions.

    Upstream chooses levels for the numbers before rounding, we for those that
    are stored.

    Args:
        values: float64 array ``[..., head_dim]``.
        bits: Bits a level.

    Returns:
        float64 array ``[..., 1]``; infinite where the scale rounds to zero.
    """
    zero = values.min(axis=-1, keepdims=True)
    top = 2**bits - 1
    scale = (values.max(axis=-1, keepdims=True) - zero) / top
    stored_scale, stored_zero = (
        x.astype(np.float16).astype(float) for x in (scale, zero)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        stretch = top * np.abs(scale / stored_scale - 1)
        shift = np.abs(zero - stored_zero) / stored_scale
    slack = np.where(stored_scale > 0, stretch + shift, np.inf)
    return slack + POSITION_SLACK
