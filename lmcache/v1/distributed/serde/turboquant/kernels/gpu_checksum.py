# SPDX-License-Identifier: Apache-2.0
"""The checksum of bytes on a GPU, in one pass at the speed of memory.

Grid: blocks of words. Every program adds its share to the total by one atomic
addition, so the order in which they run does not matter.
"""

# Third Party
import torch
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_device

BLOCK_WORDS = 2048
"""Words of a program: each of its threads loads four times 16 bytes."""

NUM_WARPS = 4


def supports(words: torch.Tensor) -> bool:
    """Return whether the kernel can work on these words."""
    return gpu_device.runs_on(words.device)


def add_checksum(
    words: torch.Tensor,
    first_position: int,
    total: torch.Tensor,
    constants: tuple[int, int, int, int],
) -> None:
    """Add what words contribute to a checksum to a total, modulo 2^64.

    Nothing waits for the device.

    Args:
        words: Contiguous int32 tensor that :func:`supports`.
        first_position: Position of the first word.
        total: int64 tensor of one element on the same device.
        constants: 32-bit constants of ``checksum``: position step, first and
            second multiplier, weight step.
    """
    if not words.numel():
        return
    with gpu_device.current(words.device):
        checksum_kernel[(triton.cdiv(words.numel(), BLOCK_WORDS),)](
            words,
            total,
            words.numel(),
            first_position,
            CONSTANTS=constants,
            BLOCK_WORDS=BLOCK_WORDS,
            num_warps=NUM_WARPS,
        )


@triton.jit(do_not_specialize=["num_words", "first_position"])
def checksum_kernel(
    words_ptr,
    total_ptr,
    num_words,
    first_position,
    CONSTANTS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):
    """Add the share of one program.

    Args:
        words_ptr: int32 words.
        total_ptr: int64 total.
        num_words: Words that there are.
        first_position: Position of the first word.
        CONSTANTS: As for :func:`add_checksum`.
        BLOCK_WORDS: Words of a program.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK_WORDS
    lane = tl.arange(0, BLOCK_WORDS)
    position = (first_position + start).to(tl.uint32) + lane.to(tl.uint32)
    ptrs = words_ptr + start + lane
    remaining = num_words - start
    # Without a mask, a thread loads 16 bytes at once.
    if remaining >= BLOCK_WORDS:
        shares = _shares(tl.load(ptrs), position, CONSTANTS)
    else:
        exists = lane < remaining.to(tl.int32)
        words = tl.load(ptrs, exists, other=0)
        shares = tl.where(exists, _shares(words, position, CONSTANTS), 0)
    share = tl.sum(shares, axis=0).to(tl.int64, bitcast=True)
    tl.atomic_add(total_ptr, share, sem="relaxed")


@triton.jit
def _shares(words, position, CONSTANTS: tl.constexpr):
    """Return what int32 words at uint32 positions add to the checksum, uint64."""
    mixed = words.to(tl.uint32, bitcast=True) + position * CONSTANTS[0]
    mixed = (mixed ^ (mixed >> 15)) * CONSTANTS[1]
    mixed = (mixed ^ (mixed >> 13)) * CONSTANTS[2]
    mixed = mixed ^ (mixed >> 16)
    weight = (position * CONSTANTS[3]) | 1
    return mixed.to(tl.uint64) * weight.to(tl.uint64)
