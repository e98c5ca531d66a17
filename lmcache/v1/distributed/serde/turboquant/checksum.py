# SPDX-License-Identifier: Apache-2.0
"""A 64-bit checksum that any number of threads can compute in any order.

The bytes are read as little-endian 32-bit words. Each word is mixed with its
position and multiplied by an odd weight that depends on the position; the checksum
is the sum modulo 2^64. A word's contribution is an injective function of the word,
so a change within one word always changes the sum; other changes go unnoticed with a
probability near 2^-64. It finds accidents; it does not keep out an adversary.
"""

# Standard
from collections.abc import Callable
from functools import partial

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import has_triton
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_checksum import (
    BYTES_PER_STEP,
    add_checksum,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import LANES
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_threads import (
    run,
    share_out,
)

WORD_BYTES = 4

POSITION_STEP = 0x9E3779B1
FIRST_MULTIPLIER = 0x85EBCA77
SECOND_MULTIPLIER = 0xC2B2AE3D
WEIGHT_STEP = 0x27D4EB2F
"""Odd 32-bit constants with well spread bits."""

CONSTANTS = (POSITION_STEP, FIRST_MULTIPLIER, SECOND_MULTIPLIER, WEIGHT_STEP)
_AS_INT32 = np.array(CONSTANTS, np.uint32).view(np.int32)
_MASK = 0xFFFFFFFF
_BYTES_PER_SHARE = 1 << 18
_DEVICE_PASS_WORDS = 1 << 22
"""Words mixed at once on a device: enough to keep it busy."""


def checksum(data: torch.Tensor, start: int = 0, threads: int = 1) -> int:
    """Return the checksum of bytes, or what a part of them adds to it.

    Args:
        data: Contiguous uint8 tensor on any device.
        start: Offset of the part from the first byte that the checksum covers.
        threads: Threads to work with on the CPU, as in ``cpu_threads.run``. The
            checksum does not depend on it.

    Returns:
        An unsigned 64-bit number. The parts' numbers add up modulo 2^64.

    Raises:
        ValueError: If length or offset is not a multiple of ``WORD_BYTES``.
    """
    if data.numel() % WORD_BYTES or start % WORD_BYTES:
        raise ValueError(
            f"A checksum needs whole {WORD_BYTES}-byte words, got {data.numel()} "
            f"bytes from {start} on"
        )
    first = start // WORD_BYTES
    if not data.is_cpu:
        total = torch.zeros((), dtype=torch.int64, device=data.device)
        add_device_checksum(data.view(torch.int32), first, total)
        return int(total) % 2**64
    done = data.numel() // BYTES_PER_STEP * BYTES_PER_STEP
    sum_of_steps = _sum_on_cpu(data[:done].numpy(), first, threads)
    rest = data[done:].clone().view(torch.int32)
    return (sum_of_steps + int(_share(rest, first + done // WORD_BYTES))) % 2**64


def add_device_checksum(
    words: torch.Tensor, first_position: int, total: torch.Tensor
) -> None:
    """Add what words contribute to a checksum to a total, on an accelerator.

    Nothing waits for the device: the total is complete when the work queued on the
    current stream is. Parts of the data may be added in any order.

    Args:
        words: Contiguous int32 tensor.
        first_position: Position of its first word among all words.
        total: int64 tensor of one element on the same device; the checksum is its
            value modulo 2^64.
    """
    if has_triton():
        # First Party
        from lmcache.v1.distributed.serde.turboquant.kernels import gpu_checksum

        if gpu_checksum.supports(words):
            gpu_checksum.add_checksum(words, first_position, total, CONSTANTS)
            return
    for start in range(0, words.numel(), _DEVICE_PASS_WORDS):
        part = words[start : start + _DEVICE_PASS_WORDS]
        total += _share(part, first_position + start)


def _sum_on_cpu(data: np.ndarray, first_position: int, threads: int) -> int:
    """Return the checksum of whole steps of the CPU kernel."""
    shares = share_out(len(data), threads, unit=BYTES_PER_STEP, least=_BYTES_PER_SHARE)
    totals = [np.zeros(1, np.uint64) for _ in shares]
    jobs: list[Callable[[], object]] = [
        partial(_add_share, data, share, first_position, total)
        for share, total in zip(shares, totals, strict=True)
    ]
    run(jobs, threads)
    return sum(int(total[0]) for total in totals)


def _add_share(
    data: np.ndarray, share: range, first_position: int, total: np.ndarray
) -> None:
    """Add the checksum of a share of the bytes to a total."""
    first = first_position + share.start // WORD_BYTES
    positions = np.arange(first, first + LANES).astype(np.int32)
    add_checksum(data[share.start : share.stop], positions, _AS_INT32, total)


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
