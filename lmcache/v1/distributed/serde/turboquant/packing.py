# SPDX-License-Identifier: Apache-2.0
"""Numbers in a slot, in plain torch: indices of 1 to 4 bits, and float16."""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.slot import (
    FP16_BYTES,
    INDICES_PER_PACK,
)

FP16_MAX = torch.finfo(torch.float16).max


def pack(indices: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack indices, lowest bits first.

    Eight indices make one little-endian word of ``bits`` bytes: two nibbles a
    byte at 4 bits, a 24-bit word at 3 bits.

    Args:
        indices: int64 tensor ``[..., n]`` of values below ``2 ** bits``;
            ``n`` is a multiple of 8.
        bits: Bits an index, at most 4.

    Returns:
        uint8 tensor ``[..., n * bits / 8]``.
    """
    num_groups = indices.shape[-1] // INDICES_PER_PACK
    groups = indices.unflatten(-1, (num_groups, INDICES_PER_PACK))
    shifts = torch.arange(INDICES_PER_PACK, device=indices.device) * bits
    words = (groups << shifts).sum(dim=-1, keepdim=True)
    byte_shifts = torch.arange(bits, device=indices.device) * 8
    return ((words >> byte_shifts) & 0xFF).to(torch.uint8).flatten(-2)


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Undo :func:`pack`.

    Args:
        packed: uint8 tensor ``[..., n * bits / 8]``.
        bits: Bits an index, at most 4.

    Returns:
        int64 tensor ``[..., n]``.
    """
    groups = packed.long().unflatten(-1, (packed.shape[-1] // bits, bits))
    byte_shifts = torch.arange(bits, device=packed.device) * 8
    words = (groups << byte_shifts).sum(dim=-1, keepdim=True)
    shifts = torch.arange(INDICES_PER_PACK, device=packed.device) * bits
    return ((words >> shifts) & (2**bits - 1)).flatten(-2)


def to_half(numbers: torch.Tensor) -> torch.Tensor:
    """Round float32 to float16; finite numbers saturate, they do not overflow."""
    return saturated(numbers, FP16_MAX).to(torch.float16)


def half_bytes(numbers: torch.Tensor) -> torch.Tensor:
    """Round ``[..., 1]`` float32 as :func:`to_half`; return ``[..., 2]`` bytes."""
    return to_half(numbers).view(torch.uint8)


def half_at(stored: torch.Tensor, offset: int) -> torch.Tensor:
    """Read the float16 at ``offset`` of each field as float32 ``[..., 1]``."""
    # A clone starts at an even address, which one row of a slot may not.
    pair = stored[..., offset : offset + FP16_BYTES].clone(
        memory_format=torch.contiguous_format
    )
    return pair.view(torch.float16).float()


def saturated(numbers: torch.Tensor, limit: float) -> torch.Tensor:
    """Clamp finite numbers to ``[-limit, limit]``; pass on the others."""
    clamped = numbers.clamp(-limit, limit)
    return torch.where(numbers.isfinite(), clamped, numbers)
