# SPDX-License-Identifier: Apache-2.0
"""Which fields of a slot a launch works on, and where they are; needs no Triton."""

# Standard
from dataclasses import dataclass
from functools import cached_property

# First Party
from lmcache.v1.distributed.serde.turboquant.slot import (
    Field,
    KeyField,
    SlotLayout,
    ValueField,
)

INDICES, LEVELS, FLOAT8 = range(3)
"""What the codes of a field are."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A launch over one field of every slot, or over two of equal width.

    Attributes:
        view: Index of the first field's vectors among keys and values.
        head_dim: Dimensions of a vector.
        slot_bytes: Bytes from one slot to the next.
        fields: The fields, with their offsets in a slot.
        part: Index of the field's part of the side table, where it is calibrated.
    """

    view: int
    head_dim: int
    slot_bytes: int
    fields: tuple[tuple[Field, int], ...]
    part: int = 0

    @cached_property
    def relative_key(self) -> KeyField | None:
        """The field, where it is relative to statistics; it is the only one then."""
        field = self.fields[0][0]
        if isinstance(field, KeyField) and field.is_calibrated:
            return field
        return None


def plans_of(slot: SlotLayout, *, have_same_rows: bool) -> tuple[Plan, ...]:
    """Return the launches that a slot takes.

    Args:
        slot: Byte layout of a slot.
        have_same_rows: Whether the rows of keys and values are spaced equally.

    Returns:
        One launch where it can be, else one for each field.
    """
    fields: list[tuple[Field, int]] = [(slot.key, 0)]
    if slot.value is not None:
        fields.append((slot.value, slot.value_offset))
    are_as_wide = len({field.dim for field, _ in fields}) == 1
    if have_same_rows and are_as_wide and not slot.calibrated_fields:
        return (_plan(slot, 0, *fields),)
    return tuple(_plan(slot, view, field) for view, field in enumerate(fields))


def codes_kind(field: Field) -> int:
    """Return what a field's codes are."""
    if isinstance(field, ValueField):
        return LEVELS
    return FLOAT8 if field.is_fp8 else INDICES


def field_places(field: Field, start: int) -> tuple[int, int]:
    """Return where a field's codes begin, and where they end.

    Args:
        field: Byte layout of the field; its width is a multiple of 16.
        start: Its offset in a slot.

    Returns:
        Offsets in units of 16 bits.
    """
    if isinstance(field, ValueField):
        num_code_bytes = field.scale_offset
    else:
        num_code_bytes = field.norm_offset
    return start // 2, (start + num_code_bytes) // 2


def _plan(slot: SlotLayout, view: int, *fields: tuple[Field, int]) -> Plan:
    """Return the launch over ``fields``, which are equally wide."""
    return Plan(
        view=view,
        head_dim=fields[0][0].dim,
        slot_bytes=slot.slot_bytes,
        fields=fields,
        part=view if slot.key.is_calibrated else 0,
    )
