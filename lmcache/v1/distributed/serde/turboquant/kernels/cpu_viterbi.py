# SPDX-License-Identifier: Apache-2.0
"""Steps of the search for a trellis code's best path, on lanes.

A path's bits are kept in an int a lane and state: those of the three coordinates
before a group of ``LANES`` lowest, the earliest one first, then those of the group.
The four bits from bit i on are the window of coordinate i.
"""

# Standard
from typing import Any

# Third Party
from llvmlite import ir
from numba import types
from numba.core import cgutils

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    FLOATS,
    INTS,
    LANES,
    VECTORS,
    WORD,
    untyped_intrinsic,
)
from lmcache.v1.distributed.serde.turboquant.trellis import NUM_STATES, NUM_SUBSETS

_INDEX = ir.IntType(64)
_WINDOW = ir.VectorType(ir.FloatType(), NUM_SUBSETS)

COSTS = types.UniTuple(FLOATS, NUM_STATES)
PATHS = types.UniTuple(INTS, NUM_STATES)


@untyped_intrinsic
def first_costs(typingctx: Any) -> Any:
    """Return the costs of states before the first coordinate: 0 of state 0 alone."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        costs = [0.0] + [float("inf")] * (NUM_STATES - 1)
        return cgutils.pack_array(builder, [_filled(FLOATS, cost) for cost in costs])

    return COSTS(), generate


@untyped_intrinsic
def first_paths(typingctx: Any) -> Any:
    """Return the paths of states before a group: the states themselves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        paths = [_filled(INTS, state) for state in range(NUM_STATES)]
        return cgutils.pack_array(builder, paths)

    return PATHS(), generate


@untyped_intrinsic
def advance(typingctx: Any, costs: Any, paths: Any, errors: Any, bit: Any) -> Any:
    """Extend the best paths to all states by a coordinate.

    Of two windows that lead to a state the lower one wins if none costs less. A tuple
    of costs and paths results.

    Args:
        typingctx: numba's.
        costs: Floats of each state.
        paths: Ints of each state.
        errors: Floats of each subset: what its level adds to a cost.
        bit: Ints: the bit of a path that the coordinate's path bit becomes.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        old_costs, old_paths, added = (
            [builder.extract_value(tuple_, i) for i in range(count)]
            for tuple_, count in zip(
                args[:3], (NUM_STATES, NUM_STATES, NUM_SUBSETS), strict=True
            )
        )
        new_costs, new_paths = [], []
        for state in range(NUM_STATES):
            windows = 2 * state, 2 * state + 1
            lower, upper = (
                builder.fadd(old_costs[window % NUM_STATES], added[_subset_of(window)])
                for window in windows
            )
            is_upper = builder.fcmp_ordered("<", upper, lower)
            new_costs.append(builder.select(is_upper, upper, lower))
            low_path, high_path = (old_paths[window % NUM_STATES] for window in windows)
            path = builder.select(is_upper, high_path, low_path)
            is_set = state >= NUM_STATES // 2
            new_paths.append(builder.or_(path, args[3]) if is_set else path)
        packed = [cgutils.pack_array(builder, x) for x in (new_costs, new_paths)]
        return context.make_tuple(builder, signature.return_type, packed)

    return types.Tuple((COSTS, PATHS))(COSTS, PATHS, errors, INTS), generate


@untyped_intrinsic
def read_windows(typingctx: Any, windows: Any, starts: Any, row: Any) -> Any:
    """Read a row of ``NUM_SUBSETS`` floats for each lane; return a tuple of columns.

    Args:
        typingctx: numba's.
        windows: Contiguous float32 ``[windows, NUM_SUBSETS]``.
        starts: Tile of int32: indices of rows of ``windows``.
        row: Row of that tile to go by.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        table, places = (
            context.make_array(kind)(context, builder, array).data
            for kind, array in zip(signature.args[:2], args[:2], strict=True)
        )
        first = builder.mul(args[2], ir.Constant(_INDEX, LANES))
        rows = []
        for lane in range(LANES):
            place = builder.add(first, ir.Constant(_INDEX, lane))
            start = builder.zext(builder.load(builder.gep(places, [place])), _INDEX)
            offset = builder.mul(start, ir.Constant(_INDEX, NUM_SUBSETS))
            pointer = builder.bitcast(
                builder.gep(table, [offset]), _WINDOW.as_pointer()
            )
            rows.append(builder.load(pointer, align=4))
        return cgutils.pack_array(builder, _columns(builder, rows))

    result = types.UniTuple(FLOATS, NUM_SUBSETS)
    return result(windows, starts, types.intp), generate


def _subset_of(window: int) -> int:
    """Return the subset that four path bits choose, the latest one highest."""
    parity = (window >> 3) ^ (window >> 1) ^ window
    return 2 * (parity & 1) + ((window >> 2) & 1)


def _columns(builder: Any, rows: list[ir.Value]) -> list[ir.Value]:
    """Transpose ``LANES`` rows of four: halves stay apart until the last shuffle."""
    pairs = [
        _shuffled(builder, rows[i], rows[i + 4], range(8)) for i in range(LANES // 2)
    ]
    columns = []
    for first in (0, 2):
        order = [first, 8 + first, first + 1, 9 + first]
        order += [place + 4 for place in order]
        left = _shuffled(builder, pairs[0], pairs[1], order)
        right = _shuffled(builder, pairs[2], pairs[3], order)
        for place in (0, 2):
            order = [place, place + 1, place + 8, place + 9]
            order += [place + 4 for place in order]
            columns.append(_shuffled(builder, left, right, order))
    return columns


def _shuffled(
    builder: Any, left: ir.Value, right: ir.Value, order: Any
) -> ir.Instruction:
    """Gather elements of two vectors, those of the second counted after the first's."""
    picks = ir.Constant(ir.VectorType(WORD, LANES), list(order))
    return builder.shuffle_vector(left, right, picks)


def _filled(kind: types.Type, number: float) -> ir.Constant:
    """Return a constant with the same number in every lane."""
    return ir.Constant(VECTORS[kind], [number] * LANES)
