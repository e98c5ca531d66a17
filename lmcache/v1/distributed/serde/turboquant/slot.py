# SPDX-License-Identifier: Apache-2.0
"""Presets and the slot: the bytes of one head vector pair of one token.

A slot is ``key bytes | value bytes``, padded to an even number of bytes:

- 8-bit key: one float8 e4m3 byte a dimension;
- low-bit key: packed codebook indices, then the row's norm as float16;
- value: packed uniform levels, then scale and zero point as float16.

Every size and offset inside a slot is defined here and nowhere else.
"""

# Standard
from dataclasses import dataclass
from functools import cached_property

FP16_BYTES = 2
FP8_KEY_BITS = 8

INDICES_PER_PACK = 8
"""Indices that share whole bytes at every bit width; head_dim is a multiple."""

MAX_HEAD_DIM = 1024


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Bit widths of a TurboQuant preset.

    Attributes:
        key_bits: 8 stores keys as float8 e4m3; fewer bits store rotated,
            normalised keys as indices of a Lloyd-Max codebook.
        value_bits: Bits a dimension of the uniformly quantised values.
    """

    key_bits: int
    value_bits: int

    @property
    def key_is_fp8(self) -> bool:
        """Whether keys are float8 bytes rather than codebook indices."""
        return self.key_bits == FP8_KEY_BITS


PRESETS = {
    "turboquant_k8v4": Preset(key_bits=8, value_bits=4),
    "turboquant_4bit_nc": Preset(key_bits=4, value_bits=4),
    "turboquant_k3v4_nc": Preset(key_bits=3, value_bits=4),
    "turboquant_3bit_nc": Preset(key_bits=3, value_bits=3),
}
"""``kXvY``: X-bit keys, Y-bit values; ``nc``: the decoder corrects norms."""

DEFAULT_PRESET = "turboquant_k8v4"


@dataclass(frozen=True, kw_only=True)
class SlotLayout:
    """Sizes and offsets, in bytes, inside one slot.

    Attributes:
        preset: Bit widths of keys and values.
        head_dim: Dimensions of a head vector.
    """

    preset: Preset
    head_dim: int

    @cached_property
    def key_index_bytes(self) -> int:
        """Bytes of the packed key indices, or of the float8 key."""
        return self.head_dim * self.preset.key_bits // 8

    @cached_property
    def key_bytes(self) -> int:
        """Bytes of the key, its norm included."""
        norm_bytes = 0 if self.preset.key_is_fp8 else FP16_BYTES
        return self.key_index_bytes + norm_bytes

    @cached_property
    def key_norm_offset(self) -> int:
        """Offset of the float16 norm; a float8 key has none and ends here."""
        return self.key_index_bytes

    @cached_property
    def value_offset(self) -> int:
        """Offset of the packed value levels."""
        return self.key_bytes

    @cached_property
    def value_level_bytes(self) -> int:
        """Bytes of the packed value levels."""
        return self.head_dim * self.preset.value_bits // 8

    @cached_property
    def value_scale_offset(self) -> int:
        """Offset of the float16 scale."""
        return self.value_offset + self.value_level_bytes

    @cached_property
    def value_zero_offset(self) -> int:
        """Offset of the float16 zero point."""
        return self.value_scale_offset + FP16_BYTES

    @cached_property
    def value_bytes(self) -> int:
        """Bytes of the value, scale and zero point included."""
        return self.value_level_bytes + 2 * FP16_BYTES

    @cached_property
    def used_bytes(self) -> int:
        """Bytes of key and value."""
        return self.key_bytes + self.value_bytes

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next: ``used_bytes`` rounded up to even."""
        return self.used_bytes + self.used_bytes % 2
