# SPDX-License-Identifier: Apache-2.0
"""How much is measured."""

# Standard
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of a run.

    Attributes:
        context: Tokens that are cached of a window; a multiple of a chunk's.
        reading: Tokens that are read after them.
        windows: Windows under plain keys.
        biased_windows: How many of them are measured under each bias too.
        strengths: Of the key biases.
        haystacks: Cached tokens of each text that hides a passkey.
        depths: Where in each of these texts the passkey lies.
        crowded: Texts with several needles, and as many lists of keys and values.
        upstream_tokens: Tokens on which LMCache's own encoder is run.
    """

    context: int
    reading: int
    windows: int
    biased_windows: int
    strengths: tuple[float, ...]
    haystacks: tuple[int, ...]
    depths: tuple[float, ...]
    crowded: int
    upstream_tokens: int


FULL = Plan(
    context=512,
    reading=64,
    windows=8,
    biased_windows=3,
    strengths=(5, 20, 60),
    haystacks=(1024, 2048),
    depths=(0.1, 0.5, 0.9),
    crowded=2,
    upstream_tokens=32,
)

QUICK = Plan(
    context=256,
    reading=32,
    windows=2,
    biased_windows=1,
    strengths=(20,),
    haystacks=(512,),
    depths=(0.5,),
    crowded=1,
    upstream_tokens=4,
)
