# SPDX-License-Identifier: Apache-2.0
"""Read payloads without the code under test: NumPy alone, from the layout's text."""

# Standard
from dataclasses import dataclass

# Third Party
import numpy as np
import torch

# First Party
from tests.v1.distributed.serde.turboquant.interchange.cases import Case


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Fields of the slots of the real tokens, ``[layers, tokens, heads, ...]``.

    Attributes:
        key_codes: float8 bytes or codebook indices, ``[..., head_dim]``.
        key_norms: float16 norms; None for float8 keys.
        value_levels: Levels, ``[..., head_dim]``.
        value_scales: float16 scales.
        value_zeros: float16 zero points.
        padding: uint8 slots of the tokens past the last,
            ``[layers, padding tokens, heads, slot bytes]``.
    """

    key_codes: np.ndarray
    key_norms: np.ndarray | None
    value_levels: np.ndarray
    value_scales: np.ndarray
    value_zeros: np.ndarray
    padding: np.ndarray


def slot_bytes(payload: torch.Tensor, case: Case) -> np.ndarray:
    """View a payload's slots.

    Args:
        payload: The payload; the view shares its memory.
        case: What it was encoded from.

    Returns:
        uint8 array ``[layers, tokens with padding, heads, slot bytes]``.
    """
    first, last = raw_bytes(payload, case)
    padded_tokens = -(-case.tokens // case.block_size) * case.block_size
    middle = payload.numpy()[len(first) : payload.numel() - len(last)]
    return middle.reshape(len(case.compressed_layers), padded_tokens, case.heads, -1)


def raw_bytes(payload: torch.Tensor, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """View the raw groups of a payload.

    Args:
        payload: The payload; the views share its memory.
        case: What it was encoded from.

    Returns:
        The bytes before and after the slots.
    """
    layer_elements = 2 * case.tokens * case.heads * case.head_dim
    group_bytes = case.skip * layer_elements * case.dtype.itemsize
    stored = payload.numpy()
    return stored[:group_bytes], stored[len(stored) - group_bytes :]


def read_slots(payload: torch.Tensor, case: Case) -> Slots:
    """Take a payload's slots apart.

    Args:
        payload: The payload.
        case: What it was encoded from.

    Returns:
        The fields.
    """
    slots = slot_bytes(payload, case)
    real = slots[:, : case.tokens]
    key_bits, value_bits = case.config.key_quant_bits, case.config.value_quant_bits
    key_end = case.head_dim * key_bits // 8
    value_start = key_end if key_bits == 8 else key_end + 2
    value_end = value_start + case.head_dim * value_bits // 8
    return Slots(
        key_codes=unpack(real[..., :key_end], key_bits),
        key_norms=None if key_bits == 8 else float16_at(real, key_end),
        value_levels=unpack(real[..., value_start:value_end], value_bits),
        value_scales=float16_at(real, value_end),
        value_zeros=float16_at(real, value_end + 2),
        padding=slots[:, case.tokens :],
    )


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack little-endian codes.

    Args:
        packed: uint8 array ``[..., n * bits / 8]``.
        bits: Bits a code, at most 8.

    Returns:
        uint8 array ``[..., n]``.
    """
    lowest_first = np.unpackbits(packed, axis=-1, bitorder="little")
    grouped = lowest_first.reshape(*packed.shape[:-1], -1, bits)
    return np.packbits(grouped, axis=-1, bitorder="little")[..., 0]


def float16_at(slots: np.ndarray, offset: int) -> np.ndarray:
    """Read the little-endian float16 at a byte offset of every slot."""
    return np.ascontiguousarray(slots[..., offset : offset + 2]).view("<f2")[..., 0]
