# SPDX-License-Identifier: Apache-2.0
"""Values as evenly spaced levels between a row's extremes, in plain torch."""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.packing import half_at, pack, unpack
from lmcache.v1.distributed.serde.turboquant.slot import ValueField


def range_of(
    rows: torch.Tensor, field: ValueField
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and zero point, float16 ``[..., 1]``, of each row's extremes."""
    lowest = rows.amin(dim=-1, keepdim=True)
    spans = rows.amax(dim=-1, keepdim=True) - lowest
    # Divide by a tensor: by a number, some devices multiply by the reciprocal.
    scales = spans / torch.full_like(spans, field.top_level)
    return scales.to(torch.float16), lowest.to(torch.float16)


def value_levels(
    rows: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, field: ValueField
) -> torch.Tensor:
    """Choose the nearest levels.

    Args:
        rows: float32 vectors ``[..., field.dim]``.
        scales: Steps between levels, float16 or float32 ``[..., 1]``.
        zeros: The lowest level's value, float16 or float32 ``[..., 1]``.
        field: Byte layout of the field.

    Returns:
        float32 ``[..., field.dim]``; 0 where the scale is 0.
    """
    steps = scales.float()
    levels = (rows - zeros.float()) / torch.where(steps > 0, steps, torch.inf)
    return (levels + 0.5).floor().nan_to_num(nan=0).clamp(0, field.top_level)


def store_values(
    levels: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, field: ValueField
) -> torch.Tensor:
    """Write down levels, scales and zero points.

    Args:
        levels: float32 ``[..., field.dim]``.
        scales: float16 ``[..., 1]``.
        zeros: float16 ``[..., 1]``.
        field: Byte layout of the field.

    Returns:
        uint8 tensor ``[..., field.num_bytes]``.
    """
    packed = pack(levels.long(), field.bits)
    return torch.cat([packed, *(x.view(torch.uint8) for x in (scales, zeros))], -1)


def load_values(stored: torch.Tensor, field: ValueField) -> torch.Tensor:
    """Restore what :func:`store_values` wrote.

    Args:
        stored: uint8 tensor ``[..., field.num_bytes]``.
        field: Byte layout of the field.

    Returns:
        float32 ``[..., field.dim]``.
    """
    levels = unpack(stored[..., : field.scale_offset], field.bits).float()
    scales = half_at(stored, field.scale_offset)
    return levels * scales + half_at(stored, field.zero_offset)
