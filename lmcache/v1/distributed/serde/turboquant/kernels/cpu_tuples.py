# SPDX-License-Identifier: Apache-2.0
"""Functions of tuples of lane values."""

# Standard
from typing import Any

# Third Party
from llvmlite import ir
from numba.core import cgutils

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    WORD,
    untyped_intrinsic,
)


@untyped_intrinsic
def transpose(typingctx: Any, values: Any) -> Any:
    """Transpose ``LANES`` values: lane j of value i becomes lane i of value j."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        parts = [builder.extract_value(args[0], i) for i in range(LANES)]
        for low, high, half in _pairs(LANES):
            left, right = parts[low], parts[high]
            parts[low] = _interleave(builder, left, right, half, take=0)
            parts[high] = _interleave(builder, left, right, half, take=half)
        return cgutils.pack_array(builder, parts)

    return values(values), generate


@untyped_intrinsic
def butterflies(typingctx: Any, values: Any) -> Any:
    """Apply Hadamard butterflies to a tuple of floats, a power of two of them.

    A pass adds and subtracts values that are ``half`` apart, for ``half`` from
    half of the tuple down to 1.
    """
    count = len(values)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        parts = [builder.extract_value(args[0], i) for i in range(count)]
        for low, high, _ in _pairs(count):
            left, right = parts[low], parts[high]
            parts[low] = builder.fadd(left, right)
            parts[high] = builder.fsub(left, right)
        return cgutils.pack_array(builder, parts)

    return values(values), generate


def _pairs(count: int) -> list[tuple[int, int, int]]:
    """List ``(low, high, half)`` of every butterfly over ``count`` values."""
    halves = [count >> level for level in range(1, count.bit_length())]
    return [
        (low, low + half, half)
        for half in halves
        for low in range(count)
        if not low & half
    ]


def _interleave(
    builder: Any, left: ir.Value, right: ir.Value, half: int, *, take: int
) -> ir.Value:
    """Gather the lanes whose bit ``half`` equals ``take``.

    Those of ``left`` go to the lanes with the bit clear, those of ``right`` to
    the lanes with the bit set.
    """
    picks = [
        (lane & ~half) | take | (LANES if lane & half else 0) for lane in range(LANES)
    ]
    order = ir.Constant(ir.VectorType(WORD, LANES), picks)
    return builder.shuffle_vector(left, right, order)
