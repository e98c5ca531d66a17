# SPDX-License-Identifier: Apache-2.0
"""The checksum of bytes on the CPU, at the speed of memory."""

# Standard
from functools import reduce
from typing import Any

# Third Party
from llvmlite import ir
from numba import types
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    SOURCE_REVISION,
    Kernel,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    INTS,
    LANES,
    SUMS,
    VECTORS,
    WORD,
    untyped_intrinsic,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    read_row_of_words,
)

BYTES_PER_STEP = 4 * LANES

_WIDE = VECTORS[SUMS]


@untyped_intrinsic
def _no_sums(typingctx: Any) -> Any:
    """Return sums of nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(_WIDE, [0] * _WIDE.count)

    return SUMS(), generate


@untyped_intrinsic
def _add_products(typingctx: Any, sums: Any, left: Any, right: Any) -> Any:
    """Add the 64-bit products of unsigned lanes to sums.

    Products of even lanes, then those of odd ones: no lane has to move, and a
    processor multiplies the low halves of 64-bit lanes in one instruction.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pairs = [builder.bitcast(lanes, _WIDE) for lanes in args[1:]]
        low_half = ir.Constant(_WIDE, [0xFFFFFFFF] * _WIDE.count)
        half_bits = ir.Constant(_WIDE, [32] * _WIDE.count)
        even = builder.mul(*(builder.and_(pair, low_half) for pair in pairs))
        odd = builder.mul(*(builder.lshr(pair, half_bits) for pair in pairs))
        return builder.add(args[0], builder.add(even, odd))

    return SUMS(SUMS, INTS, INTS), generate


@untyped_intrinsic
def _total(typingctx: Any, sums: Any) -> Any:
    """Add sums up."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = [
            builder.extract_element(args[0], ir.Constant(WORD, i))
            for i in range(_WIDE.count)
        ]
        return reduce(builder.add, parts)

    return types.uint64(SUMS), generate


@Kernel
def add_checksum(
    data: np.ndarray,
    positions: np.ndarray,
    constants: np.ndarray,
    total: np.ndarray,
    revision: int = SOURCE_REVISION,
) -> None:
    """Add what bytes contribute to a checksum to a total, modulo 2^64.

    Offsets and weights grow by constants from word to word, which saves two
    multiplications.

    Args:
        data: Bytes, a multiple of ``BYTES_PER_STEP``.
        positions: int32 positions of the first ``LANES`` words.
        constants: The constants of ``checksum`` as int32: position step, first and
            second multiplier, weight step.
        total: uint64 array of one element.
        revision: See ``Kernel``.
    """
    step, first, second, weight_step = constants
    offsets = get(positions, 0) * step
    weights = get(positions, 0) * weight_step
    sums = _no_sums()
    for at in range(0, len(data), BYTES_PER_STEP):
        mixed = read_row_of_words(data, at) + offsets
        mixed = (mixed ^ (mixed >> 15)) * first
        mixed = (mixed ^ (mixed >> 13)) * second
        sums = _add_products(sums, mixed ^ (mixed >> 16), weights | 1)
        offsets, weights = offsets + step * LANES, weights + weight_step * LANES
    total[0] += _total(sums)
