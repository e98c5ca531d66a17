# SPDX-License-Identifier: Apache-2.0
"""The checksum of bytes on the CPU, at the speed of memory."""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    SOURCE_REVISION,
    Kernel,
)


@Kernel
def add_checksum(
    words: np.ndarray,
    constants: np.ndarray,
    total: np.ndarray,
    first_position: int,
    revision: int = SOURCE_REVISION,
) -> None:
    """Add the checksum of words to a total, modulo 2^64.

    Args:
        words: uint32 words.
        constants: The uint32 constants of ``checksum``: position step, first and
            second multiplier, weight step.
        total: uint64 array of one element.
        first_position: Position of the first word.
        revision: See ``Kernel``.
    """
    step, first, second, weight_step = constants
    share = np.uint64(0)
    for index in range(len(words)):
        position = np.uint32(first_position + index)
        mixed = np.uint32(words[index] + position * step)
        mixed = np.uint32((mixed ^ (mixed >> np.uint32(15))) * first)
        mixed = np.uint32((mixed ^ (mixed >> np.uint32(13))) * second)
        mixed ^= mixed >> np.uint32(16)
        weight = np.uint32(position * weight_step) | np.uint32(1)
        share += np.uint64(mixed) * np.uint64(weight)
    total[0] += share
