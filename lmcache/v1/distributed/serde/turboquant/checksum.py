# SPDX-License-Identifier: Apache-2.0
"""A 64-bit checksum that any number of threads can compute in any order.

The bytes are read as little-endian 32-bit words. Each word is mixed with its
position and multiplied by an odd weight that depends on the position; the checksum
is the sum modulo 2^64. A word's contribution is an injective function of the word,
so a change within one word always changes the sum; other changes go unnoticed with a
probability near 2^-64. It finds accidents; it does not keep out an adversary.
"""

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_checksum import add_checksum

WORD_BYTES = 4

POSITION_STEP = 0x9E3779B1
FIRST_MULTIPLIER = 0x85EBCA77
SECOND_MULTIPLIER = 0xC2B2AE3D
WEIGHT_STEP = 0x27D4EB2F
"""Odd 32-bit constants with well spread bits."""

_CONSTANTS = np.array(
    [POSITION_STEP, FIRST_MULTIPLIER, SECOND_MULTIPLIER, WEIGHT_STEP], np.uint32
)
_MASK = 0xFFFFFFFF
_DEVICE_PASS_WORDS = 1 << 22
"""Words mixed at once on a device: enough to keep it busy."""


def checksum(data: torch.Tensor, start: int = 0) -> int:
    """Return the checksum of bytes, or what a part of them adds to it.

    Args:
        data: Contiguous uint8 tensor on any device.
        start: Offset of the part from the first byte that the checksum covers.

    Returns:
        An unsigned 64-bit number. The parts' numbers add up modulo 2^64.

    Raises:
        ValueError: If length or offset is not a multiple of ``WORD_BYTES``.
    """
    if data.device.type != "cpu":
        return int(queued_checksum(data, start)) % 2**64
    _require_words(data, start)
    total = np.zeros(1, np.uint64)
    words = data.numpy().view(np.uint32)
    add_checksum(words, _CONSTANTS, total, start // WORD_BYTES)
    return int(total[0])


def queued_checksum(data: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Queue the computation of :func:`checksum` on the current stream.

    Args:
        data: As in :func:`checksum`.
        start: As in :func:`checksum`.

    Returns:
        An int64 number on the device of ``data``: the checksum modulo 2^64.

    Raises:
        ValueError: If length or offset is not a multiple of ``WORD_BYTES``.
    """
    _require_words(data, start)
    words, first = data.view(torch.int32), start // WORD_BYTES
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    for begin in range(0, words.numel(), _DEVICE_PASS_WORDS):
        total += _share(words[begin : begin + _DEVICE_PASS_WORDS], first + begin)
    return total


def _require_words(data: torch.Tensor, start: int) -> None:
    """Raise ValueError unless a part starts and ends with whole words."""
    if data.numel() % WORD_BYTES or start % WORD_BYTES:
        raise ValueError(
            f"A checksum needs whole {WORD_BYTES}-byte words, got {data.numel()} "
            f"bytes from {start} on"
        )


def _share(words: torch.Tensor, start: int) -> torch.Tensor:
    """Return what int32 ``words`` from position ``start`` on add to the sum.

    int64 arithmetic wraps modulo 2^64; masks keep 32-bit steps to 32 bits.
    """
    end = start + words.numel()
    positions = torch.arange(start, end, device=words.device) & _MASK
    mixed = (words.long() + positions * POSITION_STEP) & _MASK
    mixed = ((mixed ^ mixed >> 15) * FIRST_MULTIPLIER) & _MASK
    mixed = ((mixed ^ mixed >> 13) * SECOND_MULTIPLIER) & _MASK
    mixed = mixed ^ mixed >> 16
    weights = (positions * WEIGHT_STEP & _MASK) | 1
    return (mixed * weights).sum()
