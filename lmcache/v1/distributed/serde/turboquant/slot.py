# SPDX-License-Identifier: Apache-2.0
"""Presets and the slot: the bytes of one head of one token.

A slot is a key field and a value field, padded to an even number of bytes. Every
size and offset inside a slot is defined here and nowhere else.
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
class KeyField:
    """Bytes of a vector that is quantised as a key.

    ``packed indices | float16 norm``; with 8 bits, one float8 e4m3 a dimension
    and no norm.

    Attributes:
        bits: Bits a dimension.
        dim: Dimensions of the vector.
    """

    bits: int
    dim: int

    @cached_property
    def is_fp8(self) -> bool:
        """Whether the field holds float8 numbers rather than indices."""
        return self.bits == FP8_KEY_BITS

    @cached_property
    def norm_offset(self) -> int:
        """Offset of the norm, which is also the number of index bytes."""
        return self.dim * self.bits // 8

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the field."""
        return self.norm_offset + (0 if self.is_fp8 else FP16_BYTES)


@dataclass(frozen=True, kw_only=True)
class ValueField:
    """Bytes of a uniformly quantised vector.

    ``packed levels | float16 scale | float16 zero point``.

    Attributes:
        bits: Bits a dimension.
        dim: Dimensions of the vector.
    """

    bits: int
    dim: int

    @cached_property
    def top_level(self) -> int:
        """The highest level."""
        return 2**self.bits - 1

    @cached_property
    def scale_offset(self) -> int:
        """Offset of the scale, which is also the number of level bytes."""
        return self.dim * self.bits // 8

    @cached_property
    def zero_offset(self) -> int:
        """Offset of the zero point."""
        return self.scale_offset + FP16_BYTES

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the field."""
        return self.zero_offset + FP16_BYTES


Field = KeyField | ValueField


@dataclass(frozen=True, kw_only=True)
class SlotLayout:
    """Fields of one slot.

    Attributes:
        key: The first vector's field.
        value: The second vector's field: of a value; of a key, where both
            vectors are keys (the two parts of a latent); or None, where the
            slot holds one vector only.
    """

    key: KeyField
    value: Field | None

    @classmethod
    def for_preset(
        cls, preset: Preset, head_dim: int, value_dim: int, *, keys_only: bool
    ) -> "SlotLayout":
        """Lay out the slot of a preset.

        Args:
            preset: Bit widths.
            head_dim: Dimensions of the first vector.
            value_dim: Dimensions of the second vector; 0 where there is none.
            keys_only: Whether the second vector is quantised as a key too.

        Returns:
            The layout.
        """
        key = KeyField(bits=preset.key_bits, dim=head_dim)
        value: Field | None = None
        if value_dim and keys_only:
            value = KeyField(bits=preset.key_bits, dim=value_dim)
        elif value_dim:
            value = ValueField(bits=preset.value_bits, dim=value_dim)
        return cls(key=key, value=value)

    @cached_property
    def value_offset(self) -> int:
        """Offset of the value field."""
        return self.key.num_bytes

    @cached_property
    def used_bytes(self) -> int:
        """Bytes of both fields."""
        return self.key.num_bytes + (self.value.num_bytes if self.value else 0)

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next: ``used_bytes`` rounded up to even."""
        return self.used_bytes + self.used_bytes % 2
