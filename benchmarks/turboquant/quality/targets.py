# SPDX-License-Identifier: Apache-2.0
"""What the calibrated presets are meant to reach, as codebooks and trellis codes."""

# Standard
from dataclasses import dataclass

# First Party
from benchmarks.turboquant.quality.schemes import FP8


@dataclass(frozen=True)
class Target:
    """A scheme that must not diverge more than another.

    Attributes:
        scheme: Preset of the one.
        rival: Preset or name of the other.
        plain: Whether it holds under plain keys too, or under a bias alone.
    """

    scheme: str
    rival: str
    plain: bool = True


TARGETS = (
    Target("turboquant_4bit_cc", FP8),
    Target("turboquant_3bit_cc", "turboquant_4bit_nc"),
    Target("turboquant_2bit_cc", "turboquant_3bit_nc"),
    Target("turboquant_2bit_cc", "turboquant_4bit_nc", plain=False),
    Target("turboquant_4bit_tc", FP8),
    Target("turboquant_3bit_tc", "turboquant_4bit_nc"),
    Target("turboquant_2bit_tc", "turboquant_3bit_nc"),
    Target("turboquant_2bit_tc", "turboquant_4bit_nc", plain=False),
)
