# SPDX-License-Identifier: Apache-2.0
"""Number formats on lanes: codes are ints, numbers are floats.

Rounding is to nearest, ties to even, as in torch. Finite numbers beyond a
format's range become its largest; NaN becomes one code, so that the bytes do
not depend on which NaN a processor makes.
"""

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import part
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    Floats,
    Ints,
    as_floats,
    as_ints,
    ints,
    select,
    unordered,
)

_SIGN = -(2**31)
_MAGNITUDE = 2**31 - 1
_INFINITY = 0x7F800000
_NAN = 0x7FC00000

# A narrow format is float32 with fewer mantissa bits, which it drops, and a
# lower exponent bias, by which its exponents are shifted.
_FP16_DROPPED, _FP16_SHIFT = 13, 112
_E4M3_DROPPED, _E4M3_SHIFT = 20, 120
_FP16_MAX = 0x477FE000
_BF16_MAX = 0x7F7F0000
_E4M3_MAX = 0x43E00000
"""The largest finite numbers of float16, bfloat16 and e4m3, as float32 bits."""


@part
def from_bfloat16(codes: Ints) -> Floats:
    """Widen bfloat16 codes, exactly."""
    return as_floats(codes << 16)


@part
def to_bfloat16(numbers: Floats) -> Ints:
    """Round numbers below the largest bfloat16, which every decoded one is."""
    bits = as_ints(numbers)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return select(unordered(numbers, numbers), ints(_NAN >> 16), rounded)


@part
def from_float16(codes: Ints) -> Floats:
    """Widen float16 codes, exactly."""
    magnitude = (codes & 0x7FFF) << _FP16_DROPPED
    bits = _widen(magnitude, _FP16_DROPPED, _FP16_SHIFT)
    bits = select(magnitude > (0x7BFF << _FP16_DROPPED), ints(_INFINITY), bits)
    bits = select(magnitude > (0x7C00 << _FP16_DROPPED), ints(_NAN), bits)
    return as_floats(bits | ((codes & 0x8000) << 16))


@part
def to_float16(numbers: Floats) -> Ints:
    """Round numbers to float16 codes; infinity stays."""
    bits = as_ints(numbers)
    magnitude = bits & _MAGNITUDE
    bounded = select(magnitude > _FP16_MAX, ints(_FP16_MAX), magnitude)
    code = _narrow(bounded, _FP16_DROPPED, _FP16_SHIFT)
    code = select(magnitude == ints(_INFINITY), ints(0x7C00), code)
    code = code | ((bits & _SIGN) >> 16)
    return select(unordered(numbers, numbers), ints(0x7E00), code)


@part
def saturate(numbers: Floats) -> Floats:
    """Bring finite numbers into the range of float16."""
    return _bound(numbers, _FP16_MAX)


@part
def saturate_bfloat16(numbers: Floats) -> Floats:
    """Bring finite numbers into the range of bfloat16."""
    return _bound(numbers, _BF16_MAX)


@part
def from_e4m3(codes: Ints) -> Floats:
    """Widen float8 e4m3 codes, exactly."""
    magnitude = (codes & 0x7F) << _E4M3_DROPPED
    bits = _widen(magnitude, _E4M3_DROPPED, _E4M3_SHIFT)
    bits = select(magnitude == ints(0x7F << _E4M3_DROPPED), ints(_NAN), bits)
    return as_floats(bits | ((codes & 0x80) << 24))


@part
def to_e4m3(numbers: Floats) -> Ints:
    """Round numbers to float8 e4m3 codes; infinity becomes the largest."""
    bits = as_ints(numbers)
    magnitude = bits & _MAGNITUDE
    bounded = select(magnitude > _E4M3_MAX, ints(_E4M3_MAX), magnitude)
    code = _narrow(bounded, _E4M3_DROPPED, _E4M3_SHIFT)
    code = select(magnitude > _INFINITY, ints(0x7F), code)
    return code | ((bits & _SIGN) >> 24)


@part
def _bound(numbers: Floats, largest: int) -> Floats:
    """Bring finite numbers to at most a magnitude, given as float32 bits."""
    bits = as_ints(numbers)
    magnitude = bits & _MAGNITUDE
    limit = (bits & _SIGN) | largest
    finite = select(magnitude > largest, limit, bits)
    return as_floats(select(magnitude > _INFINITY - 1, bits, finite))


@part
def _narrow(magnitude: Ints, dropped: int, shift: int) -> Ints:
    """Round finite non-negative float32 bits to a narrow format.

    Below the format's smallest normal number its steps are as wide as those of
    float32 from ``2 ** (dropped + shift - 126)`` on: adding that number rounds.
    """
    tie_to_even = (magnitude >> dropped) & 1
    half_step = (1 << (dropped - 1)) - 1
    normal = (magnitude + tie_to_even + (half_step - (shift << 23))) >> dropped
    aligner = (shift + dropped + 1) << 23
    aligned = as_floats(magnitude) + as_floats(ints(aligner))
    subnormal = as_ints(aligned) - aligner
    return select(magnitude < ((shift + 1) << 23), subnormal, normal)


@part
def _widen(magnitude: Ints, dropped: int, shift: int) -> Ints:
    """Widen non-negative codes, shifted to float32's mantissa, to float32 bits."""
    normal = magnitude + (shift << 23)
    smallest = as_floats(ints((shift + 1) << 23))
    subnormal = as_ints(as_floats(magnitude + ((shift + 1) << 23)) - smallest)
    return select(magnitude < (1 << 23), subnormal, normal)
