# SPDX-License-Identifier: Apache-2.0
"""The random rotation of head vectors, and their norms, in plain torch.

Every step is an elementwise float32 operation in a fixed order: the rotation is
butterflies, sums are trees.
"""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables


def rotate(rows: torch.Tensor, layer: int) -> torch.Tensor:
    """Apply a layer's random rotation ``y = W (signs * x)``.

    ``W`` is the orthonormal Sylvester Hadamard matrix. Where head_dim is not
    a power of two, it is the Kronecker product of the Hartley matrix of the
    odd factor and the Hadamard matrix of the power of two: orthonormal,
    symmetric, and without a coordinate left unmixed. It is no uniformly random
    rotation: a row of few entries that are not zero takes few values.

    Args:
        rows: float32 tensor ``[..., head_dim]``.
        layer: Index of the layer within the memory object.

    Returns:
        float32 tensor of the same shape.
    """
    return _mix(rows * tables.rotation_signs(rows.shape[-1], layer).to(rows.device))


def unrotate(rows: torch.Tensor, layer: int) -> torch.Tensor:
    """Undo :func:`rotate`: ``x = signs * (W y)``, as ``W`` is its own inverse.

    Args:
        rows: float32 tensor ``[..., head_dim]``.
        layer: Index of the layer within the memory object.

    Returns:
        float32 tensor of the same shape.
    """
    return _mix(rows) * tables.rotation_signs(rows.shape[-1], layer).to(rows.device)


def row_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return Euclidean norms ``[..., 1]`` of ``rows``, summed as a tree."""
    # torch's float32 square root is not correctly rounded on every CPU. Rounding
    # the float64 root is, as float64 has more than twice the digits.
    return row_sums(rows * rows).double().sqrt().float()


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return sums ``[..., 1]`` of ``rows``, added up as a tree of halves."""
    sums = rows
    while sums.shape[-1] % 2 == 0:
        left, right = sums.chunk(2, dim=-1)
        sums = left + right
    total = sums[..., :1]
    for column in range(1, sums.shape[-1]):
        total = total + sums[..., column : column + 1]
    return total


def _mix(rows: torch.Tensor) -> torch.Tensor:
    """Multiply ``[..., head_dim]`` rows by the symmetric orthonormal ``W``."""
    width = rows.shape[-1]
    block = width & -width
    blocks = rows.unflatten(-1, (width // block, block))
    half = block // 2
    while half:
        pairs = blocks.unflatten(-1, (block // (2 * half), 2, half))
        left, right = pairs.unbind(dim=-2)
        blocks = torch.stack([left + right, left - right], dim=-2).flatten(-3)
        half //= 2
    blocks = blocks * block**-0.5
    if width == block:
        return blocks.flatten(-2)
    weights = torch.tensor(tables.hartley(width // block), device=rows.device)
    total = blocks[..., :1, :] * weights[:, :1]
    for column in range(1, len(weights)):
        part = blocks[..., column : column + 1, :]
        total = total + part * weights[:, column : column + 1]
    return total.flatten(-2)
