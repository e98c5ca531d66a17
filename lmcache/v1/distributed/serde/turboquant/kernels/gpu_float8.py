# SPDX-License-Identifier: Apache-2.0
"""Device functions of float8 e4m3, the same bytes with and without hardware.

Finite numbers and infinities saturate at 448; NaN becomes 0x7F.
"""

# Third Party
import triton
import triton.language as tl

_LARGEST = tl.constexpr(448.0)
_SMALLEST_NORMAL = tl.constexpr(2.0**-6)
_SUBNORMAL_STEP = tl.constexpr(2.0**14)
"""float32 has here the spacing of subnormal e4m3 numbers, 2**-9."""

_DROPPED_BITS = tl.constexpr(20)
"""Mantissa bits of float32 that e4m3 lacks."""

_ALMOST_HALF = tl.constexpr(2**19 - 1)
"""Just under half a step of e4m3, in those bits."""

_BIAS_GAP = tl.constexpr(120 << 3)
"""Exponent bias of float32 less that of e4m3, as bits of e4m3."""

_BIAS_FACTOR = tl.constexpr(2.0**120)
"""The same as a factor."""

_NAN = tl.constexpr(0x7F)


@triton.jit
def encode_e4m3(numbers, HARDWARE: tl.constexpr):
    """Round float32 to e4m3, ties to even.

    Args:
        numbers: float32 tensor.
        HARDWARE: Whether the GPU converts to float8 (sm_89 and newer).

    Returns:
        uint8 tensor of the same shape.
    """
    if HARDWARE:
        return numbers.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    bits = numbers.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = tl.minimum(tl.abs(numbers), _LARGEST)
    magnitude_bits = magnitude.to(tl.int32, bitcast=True)
    half = _ALMOST_HALF + ((magnitude_bits >> _DROPPED_BITS) & 1)
    normal = ((magnitude_bits + half) >> _DROPPED_BITS) - _BIAS_GAP
    stepped = (magnitude + _SUBNORMAL_STEP).to(tl.int32, bitcast=True)
    subnormal = stepped & 0xF
    code = sign | tl.where(magnitude < _SMALLEST_NORMAL, subnormal, normal)
    return tl.where(numbers == numbers, code, _NAN).to(tl.uint8)


@triton.jit
def decode_e4m3(codes, HARDWARE: tl.constexpr):
    """Undo :func:`encode_e4m3`.

    Args:
        codes: uint8 tensor.
        HARDWARE: Whether the GPU converts from float8.

    Returns:
        float32 tensor of the same shape.
    """
    if HARDWARE:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    code = codes.to(tl.int32)
    scaled = ((code & _NAN) << _DROPPED_BITS).to(tl.float32, bitcast=True)
    magnitude = scaled * _BIAS_FACTOR
    bits = magnitude.to(tl.int32, bitcast=True) | ((code & 0x80) << 24)
    bits = tl.where((code & _NAN) == _NAN, 0x7FC00000, bits)
    return bits.to(tl.float32, bitcast=True)
