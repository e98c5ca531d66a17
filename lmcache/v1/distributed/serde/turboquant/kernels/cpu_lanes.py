# SPDX-License-Identifier: Apache-2.0
"""Eight lanes of float32 or int32 as values inside numba functions.

numba has no SIMD type, and whether LLVM finds the SIMD in a scalar loop changes
with its version. Here a value is an LLVM vector: an operation is one vector
instruction on all lanes, in the order written, on any processor (LLVM splits a
vector that the processor's registers cannot hold). Nothing is reordered and no
multiplication is fused with an addition, so a lane computes what the same
float32 operations compute in torch.

``+ - * / & | ^ << >> < > ==`` work on two lane values, and on a lane value and
a number. ``>>`` shifts zeros in.
"""

# Standard
from collections.abc import Callable
from typing import Any, TypeAlias
import operator

# Third Party
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import (
    intrinsic,
    lower_builtin,
    models,
    register_model,
    type_callable,
)

LANES = 8

WORD = ir.IntType(32)

untyped_intrinsic: Any = intrinsic
"""numba's hints count the typing context, which numba passes, as an argument."""

Floats: TypeAlias = Any
Ints: TypeAlias = Any
Mask: TypeAlias = Any
"""Hints for values of the types below, which exist inside numba only."""


class LaneType(types.Type):
    """numba type of a value of ``LANES`` elements."""

    def __init__(self, element: str) -> None:
        super().__init__(name=f"{LANES} x {element}")


FLOATS = LaneType("float32")
INTS = LaneType("int32")
MASK = LaneType("bool")
SUMS = LaneType("half an int64")

VECTORS: dict[types.Type, ir.VectorType] = {
    FLOATS: ir.VectorType(ir.FloatType(), LANES),
    INTS: ir.VectorType(WORD, LANES),
    MASK: ir.VectorType(ir.IntType(1), LANES),
    SUMS: ir.VectorType(ir.IntType(64), LANES // 2),
}


@register_model(LaneType)
class _LaneModel(models.PrimitiveModel):
    """Lanes are held in one LLVM vector."""

    def __init__(self, dmm: Any, fe_type: LaneType) -> None:
        super().__init__(dmm, fe_type, VECTORS[fe_type])


def _define_operator(
    function: Callable, operand: LaneType, result: LaneType, build: Callable
) -> None:
    """Make a Python operator work on lanes and lanes, or lanes and a number."""
    scalar = types.float32 if operand == FLOATS else types.int32
    scalars = types.Float if operand == FLOATS else types.Integer

    @type_callable(function)
    def type_operator(context: Any) -> Callable:
        def typer(left: types.Type, right: types.Type) -> types.Type | None:
            known = right == operand or isinstance(right, scalars)
            return result if left == operand and known else None

        return typer

    @lower_builtin(function, operand, operand)
    def lower_lanes(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return build(builder, *args)

    @lower_builtin(function, operand, scalars)
    def lower_scalar(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        right = context.cast(builder, args[1], signature.args[1], scalar)
        return build(builder, args[0], _broadcast(builder, right, VECTORS[operand]))


def _comparison(method: Callable, predicate: str) -> Callable:
    """Bind a predicate to a comparison method of llvmlite's builder."""

    def build(builder: Any, left: ir.Value, right: ir.Value) -> ir.Value:
        return method(builder, predicate, left, right)

    return build


_ordered, _signed = ir.IRBuilder.fcmp_ordered, ir.IRBuilder.icmp_signed

for _function, _operand, _result, _build in (
    (operator.add, FLOATS, FLOATS, ir.IRBuilder.fadd),
    (operator.sub, FLOATS, FLOATS, ir.IRBuilder.fsub),
    (operator.mul, FLOATS, FLOATS, ir.IRBuilder.fmul),
    (operator.truediv, FLOATS, FLOATS, ir.IRBuilder.fdiv),
    (operator.lt, FLOATS, MASK, _comparison(_ordered, "<")),
    (operator.gt, FLOATS, MASK, _comparison(_ordered, ">")),
    (operator.add, INTS, INTS, ir.IRBuilder.add),
    (operator.sub, INTS, INTS, ir.IRBuilder.sub),
    (operator.mul, INTS, INTS, ir.IRBuilder.mul),
    (operator.and_, INTS, INTS, ir.IRBuilder.and_),
    (operator.or_, INTS, INTS, ir.IRBuilder.or_),
    (operator.xor, INTS, INTS, ir.IRBuilder.xor),
    (operator.lshift, INTS, INTS, ir.IRBuilder.shl),
    (operator.rshift, INTS, INTS, ir.IRBuilder.lshr),
    (operator.lt, INTS, MASK, _comparison(_signed, "<")),
    (operator.gt, INTS, MASK, _comparison(_signed, ">")),
    (operator.eq, INTS, MASK, _comparison(_signed, "==")),
    (operator.or_, MASK, MASK, ir.IRBuilder.or_),
):
    _define_operator(_function, _operand, _result, _build)


def _conversion(operand: LaneType, result: LaneType, build: Callable) -> Callable:
    """Make a function of one lane value."""

    @untyped_intrinsic
    def convert(typingctx: Any, lanes: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
            return build(builder, args[0], VECTORS[result])

        return result(operand), generate

    return convert


def _build_square_root(builder: Any, lanes: ir.Value, vector: ir.Type) -> ir.Value:
    """Call LLVM's square root, which is correctly rounded."""
    kind = ir.FunctionType(vector, [vector])
    name = f"llvm.sqrt.v{LANES}f32"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [lanes])


as_ints = _conversion(FLOATS, INTS, ir.IRBuilder.bitcast)
as_floats = _conversion(INTS, FLOATS, ir.IRBuilder.bitcast)
truncate = _conversion(FLOATS, INTS, ir.IRBuilder.fptosi)
to_floats = _conversion(INTS, FLOATS, ir.IRBuilder.sitofp)
minus_one_where = _conversion(MASK, INTS, ir.IRBuilder.sext)
square_root = _conversion(FLOATS, FLOATS, _build_square_root)


def _constant(operand: types.Type, result: LaneType) -> Callable:
    """Make a function that copies a number to every lane."""

    @untyped_intrinsic
    def fill(typingctx: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
            return _broadcast(builder, args[0], VECTORS[result])

        return result(operand), generate

    return fill


floats = _constant(types.float32, FLOATS)
ints = _constant(types.int32, INTS)


@untyped_intrinsic
def unordered(typingctx: Any, left: Any, right: Any) -> Any:
    """Return the mask of the lanes where either float is NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return builder.fcmp_unordered("uno", *args)

    return MASK(FLOATS, FLOATS), generate


@untyped_intrinsic
def select(typingctx: Any, mask: Any, chosen: Any, other: Any) -> Any:
    """Return ``chosen`` where ``mask``, else ``other``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return builder.select(*args)

    return chosen(MASK, chosen, chosen), generate


def _broadcast(builder: Any, number: ir.Value, vector: ir.VectorType) -> ir.Value:
    """Build a vector that holds ``number`` in every element."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(WORD, 0))
    zeros = ir.Constant(ir.VectorType(WORD, LANES), [0] * LANES)
    return builder.shuffle_vector(first, undefined, zeros)
