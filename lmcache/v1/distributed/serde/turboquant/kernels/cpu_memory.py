# SPDX-License-Identifier: Apache-2.0
"""How lanes and bytes meet: loads and stores at any byte offset.

A *tile* is a contiguous ``[rows, LANES]`` array; a *buffer* is a contiguous
uint8 array. ``offsets`` is an int64 array of ``LANES`` byte offsets: lane i of
a tile belongs to the head vector, or to the slot, at ``offsets[i]``.
"""

# Standard
from collections.abc import Callable
from typing import Any

# Third Party
from llvmlite import ir
from numba import types
from numba.core import cgutils
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    FLOATS,
    INTS,
    LANES,
    VECTORS,
    WORD,
    Floats,
    untyped_intrinsic,
)

_HALF = ir.IntType(16)
_INDEX = ir.IntType(64)


@untyped_intrinsic
def get(typingctx: Any, tile: Any, row: Any) -> Any:
    """Read the lanes of one row of a tile."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _row_pointer(context, builder, signature, args[0], args[1])
        return builder.load(pointer, align=4)

    return _lanes_of(tile)(tile, types.intp), generate


@untyped_intrinsic
def put(typingctx: Any, tile: Any, row: Any, lanes: Any) -> Any:
    """Write the lanes of one row of a tile."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _row_pointer(context, builder, signature, args[0], args[1])
        builder.store(args[2], pointer, align=4)
        return context.get_dummy_value()

    return types.void(tile, types.intp, lanes), generate


@untyped_intrinsic(prefer_literal=True)
def get_rows(typingctx: Any, tile: Any, first: Any, stride: Any, count: Any) -> Any:
    """Read rows ``first + i * stride`` of a tile, for i below a constant count."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows = []
        for i in range(count.literal_value):
            row = _step(builder, args[1], args[2], i)
            pointer = _row_pointer(context, builder, signature, args[0], row)
            rows.append(builder.load(pointer, align=4))
        return cgutils.pack_array(builder, rows)

    result = types.UniTuple(_lanes_of(tile), count.literal_value)
    return result(tile, types.intp, types.intp, count), generate


@untyped_intrinsic
def put_rows(typingctx: Any, tile: Any, first: Any, stride: Any, values: Any) -> Any:
    """Write a tuple of lanes to rows ``first + i * stride`` of a tile."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for i in range(len(values)):
            row = _step(builder, args[1], args[2], i)
            pointer = _row_pointer(context, builder, signature, args[0], row)
            builder.store(builder.extract_value(args[3], i), pointer, align=4)
        return context.get_dummy_value()

    return types.void(tile, types.intp, types.intp, values), generate


@part
def add_to(sums: np.ndarray, row: int, lanes: Floats) -> None:
    """Add to the lanes of one row of a tile."""
    put(sums, row, get(sums, row) + lanes)


def _row_reader(element: ir.IntType) -> Callable:
    """Make a function that reads ``LANES`` integers from one place."""
    vector = ir.VectorType(element, LANES)

    @untyped_intrinsic
    def read(typingctx: Any, buffer: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(buffer)(context, builder, args[0])
            pointer = _pointer(builder, array, args[1], vector)
            return builder.zext(builder.load(pointer, align=1), VECTORS[INTS])

        return INTS(buffer, types.intp), generate

    return read


def _row_writer(element: ir.IntType) -> Callable:
    """Make a function that writes the low bits of ints to one place."""
    vector = ir.VectorType(element, LANES)

    @untyped_intrinsic
    def write(typingctx: Any, buffer: Any, offset: Any, lanes: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(buffer)(context, builder, args[0])
            pointer = _pointer(builder, array, args[1], vector)
            builder.store(builder.trunc(args[2], vector), pointer, align=1)
            return context.get_dummy_value()

        return types.void(buffer, types.intp, INTS), generate

    return write


read_row_of_halves, write_row_of_halves = _row_reader(_HALF), _row_writer(_HALF)
read_row_of_words, write_row_of_words = _row_reader(WORD), _row_writer(WORD)


def _lane_reader(element: ir.IntType) -> Callable:
    """Make a function that reads one integer at each of ``LANES`` offsets."""

    @untyped_intrinsic
    def read(typingctx: Any, buffer: Any, offsets: Any, column: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            lanes = ir.Constant(VECTORS[INTS], ir.Undefined)
            pointers = _pointers(context, builder, signature, args, element)
            for i, pointer in enumerate(pointers):
                number = builder.zext(builder.load(pointer, align=1), WORD)
                lanes = builder.insert_element(lanes, number, ir.Constant(WORD, i))
            return lanes

        return INTS(buffer, offsets, types.intp), generate

    return read


def _lane_writer(element: ir.IntType) -> Callable:
    """Make a function that writes each lane's low bits at its own offset."""

    @untyped_intrinsic
    def write(
        typingctx: Any, buffer: Any, offsets: Any, column: Any, lanes: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointers = _pointers(context, builder, signature, args, element)
            for i, pointer in enumerate(pointers):
                number = builder.extract_element(args[3], ir.Constant(WORD, i))
                builder.store(builder.trunc(number, element), pointer, align=1)
            return context.get_dummy_value()

        return types.void(buffer, offsets, types.intp, INTS), generate

    return write


read_halves, write_halves = _lane_reader(_HALF), _lane_writer(_HALF)
read_words, write_words = _lane_reader(WORD), _lane_writer(WORD)


def _lanes_of(tile: types.Array) -> types.Type:
    """Return the type of a row of a tile."""
    return FLOATS if tile.dtype == types.float32 else INTS


def _step(builder: Any, first: ir.Value, stride: ir.Value, count: int) -> ir.Value:
    """Build ``first + count * stride``."""
    return builder.add(first, builder.mul(stride, ir.Constant(stride.type, count)))


def _row_pointer(
    context: Any, builder: Any, signature: Any, tile: ir.Value, row: ir.Value
) -> ir.Value:
    """Point to a row of the tile that is the function's first argument."""
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, tile)
    first = builder.mul(row, ir.Constant(row.type, LANES))
    pointer = builder.gep(array.data, [first])
    return builder.bitcast(pointer, VECTORS[_lanes_of(kind)].as_pointer())


def _pointers(
    context: Any, builder: Any, signature: Any, args: Any, kind: ir.Type
) -> list[ir.Value]:
    """Point into ``buffer, offsets, column``: one pointer a lane."""
    buffer_type, offsets_type = signature.args[:2]
    buffer = context.make_array(buffer_type)(context, builder, args[0])
    offsets = context.make_array(offsets_type)(context, builder, args[1])
    pointers = []
    for i in range(LANES):
        offset = builder.load(builder.gep(offsets.data, [ir.Constant(_INDEX, i)]))
        byte = builder.add(offset, args[2])
        pointers.append(_pointer(builder, buffer, byte, kind))
    return pointers


def _pointer(builder: Any, buffer: Any, offset: ir.Value, kind: ir.Type) -> ir.Value:
    """Point to an LLVM value at a byte of a buffer."""
    return builder.bitcast(builder.gep(buffer.data, [offset]), kind.as_pointer())
