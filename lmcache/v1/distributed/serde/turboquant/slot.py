# SPDX-License-Identifier: Apache-2.0
"""The slot: the bytes of one head of one token.

A slot is a key field and a value field, padded to an even number of bytes. Every
size and offset inside a slot is defined here and nowhere else, and so is the number
of statistics that calibrated fields of one head share.
"""

# Standard
from dataclasses import dataclass, replace
from functools import cached_property

# First Party
from lmcache.v1.distributed.serde.turboquant.presets import FP8_KEY_BITS, Preset

FP16_BYTES = 2

INDICES_PER_PACK = 8
"""Indices that share whole bytes at every bit width; head_dim is a multiple."""

MAX_HEAD_DIM = 1024


@dataclass(frozen=True, kw_only=True)
class KeyField:
    """Bytes of a vector that is quantised as a key.

    ``packed indices | float16 norm``; with 8 bits, one float8 e4m3 a dimension
    and no norm.

    Attributes:
        bits: Bits a dimension.
        dim: Dimensions of the vector.
        is_calibrated: Whether the field's head has statistics, ``2 * dim`` numbers,
            and the sign of a norm tells whether the vector is relative to them.
        rope_theta: Base of the rotary embedding that the vectors carry; 0: none.
        is_averaged: Whether attention averages the vectors, so that a norm is stored
            that makes the restored vector unbiased rather than as long.
        is_trellis: Whether indices are those of ``trellis`` rather than of a
            Lloyd-Max codebook.
    """

    bits: int
    dim: int
    is_calibrated: bool = False
    rope_theta: float = 0.0
    is_averaged: bool = False
    is_trellis: bool = False

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

    @cached_property
    def num_statistics(self) -> int:
        """Numbers that all vectors of one head and layer share."""
        return 2 * self.dim if self.is_calibrated else 0


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
            vectors are keys (the two parts of a latent) or values are quantised
            like keys; or None, where the slot holds one vector only.
    """

    key: KeyField
    value: Field | None

    @classmethod
    def for_preset(
        cls,
        preset: Preset,
        head_dim: int,
        value_dim: int,
        *,
        keys_only: bool,
        is_calibrated: bool = False,
        rope_theta: float = 0.0,
    ) -> "SlotLayout":
        """Lay out the slot of a preset.

        Args:
            preset: Bit widths.
            head_dim: Dimensions of the first vector.
            value_dim: Dimensions of the second vector; 0 where there is none.
            keys_only: Whether the second vector is a key too.
            is_calibrated: Whether keys have statistics.
            rope_theta: Base of the rotary embedding of the first vector.

        Returns:
            The layout.
        """
        key = KeyField(
            bits=preset.key_bits,
            dim=head_dim,
            is_calibrated=is_calibrated,
            rope_theta=rope_theta,
            is_trellis=preset.is_trellis,
        )
        value: Field | None = None
        if value_dim and keys_only:
            value = replace(key, dim=value_dim, rope_theta=0.0)
        elif value_dim and preset.needs_frame:
            value = KeyField(
                bits=preset.value_bits,
                dim=value_dim,
                is_averaged=True,
                is_trellis=preset.is_trellis,
            )
        elif value_dim:
            value = ValueField(bits=preset.value_bits, dim=value_dim)
        return cls(key=key, value=value)

    @cached_property
    def value_offset(self) -> int:
        """Offset of the value field."""
        return self.key.num_bytes

    @cached_property
    def fields(self) -> tuple[tuple[Field, int], ...]:
        """Each field and its offset in a slot."""
        if self.value is None:
            return ((self.key, 0),)
        return (self.key, 0), (self.value, self.value_offset)

    @cached_property
    def used_bytes(self) -> int:
        """Bytes of both fields."""
        return self.key.num_bytes + (self.value.num_bytes if self.value else 0)

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next: ``used_bytes`` rounded up to even."""
        return self.used_bytes + self.used_bytes % 2

    @cached_property
    def calibrated_fields(self) -> tuple[KeyField, ...]:
        """The fields that have statistics."""
        fields = (self.key, self.value)
        return tuple(x for x in fields if isinstance(x, KeyField) and x.is_calibrated)
