# SPDX-License-Identifier: Apache-2.0
"""Single head vectors on lanes, eight dimensions at a time.

A *doubled row* is a head vector as float32 bytes, twice: the partner of dimension
``i`` in a rotary pair is ``dim / 2`` further, whichever of the two ``i`` is.
"""

# Standard
from typing import Any

# Third Party
from llvmlite import ir
from numba import types
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    part,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    FLOATS,
    LANES,
    MASK,
    WORD,
    Floats,
    Mask,
    as_floats,
    as_ints,
    floats,
    unordered,
    untyped_intrinsic,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    read_row_of_words,
    write_row_of_words,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_rows import (
    load_dims,
)


@untyped_intrinsic
def any_lane(typingctx: Any, mask: Any) -> Any:
    """Return whether a mask holds in any lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(MASK), generate


@untyped_intrinsic
def lane_sum(typingctx: Any, lanes: Any) -> Any:
    """Add the lanes of a float value up, as a tree of halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = [
            builder.extract_element(args[0], ir.Constant(WORD, i)) for i in range(LANES)
        ]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = list(map(builder.fadd, parts[:half], parts[half:]))
        return parts[0]

    return types.float32(FLOATS), generate


@part
def new_doubled_row(dim: int) -> np.ndarray:
    """Make room for a doubled row."""
    return np.empty(8 * dim, dtype=np.uint8)


@part
def get_floats(buffer: np.ndarray, index: int) -> Floats:
    """Read eight float32 numbers from the ``index``-th on."""
    return as_floats(read_row_of_words(buffer, 4 * index))


@part
def load_doubled(source: np.ndarray, at: int, plan: Plan, row: np.ndarray) -> bool:
    """Fill a doubled row with the head vector at a byte; say whether it is finite.

    Where there are no rotary pairs, it is not doubled.
    """
    differences = floats(0.0)
    for dim in range(0, plan.dim, LANES):
        numbers = load_dims(source, at, dim, plan.number_format)
        differences = differences + (numbers - numbers)
        write_row_of_words(row, 4 * dim, as_ints(numbers))
        if plan.has_rotary:
            write_row_of_words(row, 4 * (plan.dim + dim), as_ints(numbers))
    return not any_lane(unordered(differences, differences))


@part
def put_doubled(row: np.ndarray, dim: int, first: int, numbers: Floats) -> None:
    """Write eight dimensions of a doubled row."""
    write_row_of_words(row, 4 * first, as_ints(numbers))
    write_row_of_words(row, 4 * (dim + first), as_ints(numbers))


@part
def turn_back(
    row: np.ndarray,
    dim: int,
    half: int,
    cosines: np.ndarray,
    sines: np.ndarray,
    angle: int,
) -> Floats:
    """Turn eight dimensions of a doubled row, from ``dim`` on, back.

    Args:
        row: The doubled row.
        dim: First of the eight dimensions.
        half: Half of the dimensions of a head vector.
        cosines: See ``Rotary``.
        sines: See ``Rotary``.
        angle: Index of the token's first angle.

    Returns:
        The turned dimensions.
    """
    turned = get_floats(row, dim) * get_floats(cosines, angle + dim)
    return turned + get_floats(row, dim + half) * get_floats(sines, angle + dim)


@part
def turn_forth(
    row: np.ndarray,
    dim: int,
    half: int,
    cosines: np.ndarray,
    sines: np.ndarray,
    angle: int,
) -> Floats:
    """Undo :func:`turn_back`, which takes the same arguments."""
    turned = get_floats(row, dim) * get_floats(cosines, angle + dim)
    return turned - get_floats(row, dim + half) * get_floats(sines, angle + dim)


@part
def is_turned(turned: np.ndarray, index: int) -> Mask:
    """Return which of eight dimensions, from the ``index``-th on, are turned."""
    return read_row_of_words(turned, 4 * index) < 0
