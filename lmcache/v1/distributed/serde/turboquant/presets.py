# SPDX-License-Identifier: Apache-2.0
"""Presets: how many bits of what, by name."""

# Standard
from dataclasses import dataclass

FP8_KEY_BITS = 8


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Bit widths of a TurboQuant preset.

    Attributes:
        key_bits: 8 stores keys as float8 e4m3; fewer bits store rotated,
            normalised keys as indices of a Lloyd-Max codebook.
        value_bits: Bits a dimension of the values, which are quantised uniformly,
            or like keys where the preset is calibrated or a trellis code.
        is_calibrated: Whether keys are quantised relative to statistics of the
            object's tokens, which a frame's payload carries.
        is_trellis: Whether indices are those of a trellis code rather than of a
            Lloyd-Max codebook.
    """

    key_bits: int
    value_bits: int
    is_calibrated: bool = False
    is_trellis: bool = False

    @property
    def key_is_fp8(self) -> bool:
        """Whether keys are float8 bytes rather than codebook indices."""
        return self.key_bits == FP8_KEY_BITS

    @property
    def needs_frame(self) -> bool:
        """Whether LMCache 0.5.6, whose payloads are bare, has nothing like it."""
        return self.is_calibrated or self.is_trellis


PRESETS = {
    "turboquant_k8v4": Preset(key_bits=8, value_bits=4),
    "turboquant_4bit_nc": Preset(key_bits=4, value_bits=4),
    "turboquant_k3v4_nc": Preset(key_bits=3, value_bits=4),
    "turboquant_3bit_nc": Preset(key_bits=3, value_bits=3),
}
"""``kXvY``: X-bit keys, Y-bit values; ``nc``: the decoder corrects norms.

LMCache 0.5.6 has these presets too."""

CALIBRATED_PRESETS = {
    "turboquant_4bit_cc": Preset(key_bits=4, value_bits=4, is_calibrated=True),
    "turboquant_k4v3_cc": Preset(key_bits=4, value_bits=3, is_calibrated=True),
    "turboquant_k3v4_cc": Preset(key_bits=3, value_bits=4, is_calibrated=True),
    "turboquant_3bit_cc": Preset(key_bits=3, value_bits=3, is_calibrated=True),
    "turboquant_k3v2_cc": Preset(key_bits=3, value_bits=2, is_calibrated=True),
    "turboquant_2bit_cc": Preset(key_bits=2, value_bits=2, is_calibrated=True),
}
"""``cc``: chunk-calibrated; these need framed payloads."""

TRELLIS_PRESETS = {
    "turboquant_4bit_tc": Preset(
        key_bits=4, value_bits=4, is_calibrated=True, is_trellis=True
    ),
    "turboquant_3bit_tc": Preset(
        key_bits=3, value_bits=3, is_calibrated=True, is_trellis=True
    ),
    "turboquant_2bit_tc": Preset(
        key_bits=2, value_bits=2, is_calibrated=True, is_trellis=True
    ),
    "turboquant_4bit_t": Preset(key_bits=4, value_bits=4, is_trellis=True),
    "turboquant_3bit_t": Preset(key_bits=3, value_bits=3, is_trellis=True),
    "turboquant_2bit_t": Preset(key_bits=2, value_bits=2, is_trellis=True),
}
"""``t``: trellis-coded; ``tc``: chunk-calibrated too. These need framed payloads."""

ALL_PRESETS = PRESETS | CALIBRATED_PRESETS | TRELLIS_PRESETS

DEFAULT_PRESET = "turboquant_k8v4"
