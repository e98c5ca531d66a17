# SPDX-License-Identifier: Apache-2.0
"""How hard the encoder looks for the numbers that it stores.

A decoder takes any codes, norms, scales and zero points. So the payloads of every
effort have the same layout and size, and whoever reads one need not know it.
"""

# Standard
from dataclasses import dataclass

# First Party
from lmcache.v1.distributed.serde.turboquant.slot import Field, SlotLayout, ValueField


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What is tried for each vector besides the plain rule.

    Attributes:
        key_scales: Factors of a key's direction before its codes are chosen; the
            norm correction takes them out again.
        value_trims: What is cut off a value's range at either end, each with each,
            in units of ``range / 2**bits``.
    """

    key_scales: tuple[float, ...] = ()
    value_trims: tuple[float, ...] = ()

    def searches(self, field: Field) -> bool:
        """Return whether anything else is tried for vectors of a field.

        Nothing is for float8 keys, for keys with statistics or of a trellis code, and
        for values that are quantised like keys.

        Args:
            field: Byte layout of the field.

        Returns:
            False where the plain rule is all.
        """
        if isinstance(field, ValueField):
            return bool(self.value_trims)
        has_other_rule = field.is_calibrated or field.is_averaged or field.is_trellis
        return not (field.is_fp8 or has_other_rule) and bool(self.key_scales)

    def searches_any(self, slot: SlotLayout) -> bool:
        """Return whether it searches one of the fields of a slot, or both."""
        return any(self.searches(field) for field, _ in slot.fields)


PLAIN = Effort()
"""The plain rule, that of LMCache 0.5.6, in one pass."""

EFFORTS = {
    "fast": PLAIN,
    "balanced": Effort(key_scales=(0.9, 1.08, 1.16), value_trims=(0.45, 1.1)),
    "best": Effort(
        key_scales=(0.82, 0.86, 0.9, 0.93, 0.97, 1.04, 1.08, 1.13, 1.18, 1.24),
        value_trims=(0.35, 0.85, 1.4),
    ),
}
"""By name."""

DEFAULT_EFFORT = "fast"
