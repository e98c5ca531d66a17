# SPDX-License-Identifier: Apache-2.0
"""The serdes that are compared, each with what its round trip must keep."""

# Standard
from dataclasses import dataclass

HEAD_DIM = 128
NO_SERDE = "no serde"
UPSTREAM = "LMCache 0.5.6 turboquant_4bit_nc"
_EVERY_LAYER: dict[str, object] = {
    "head_dim": HEAD_DIM,
    "skip_first_layers": 0,
    "skip_last_layers": 0,
}


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A serde, or none.

    Attributes:
        name: What the table calls it.
        serde: The ``"serde"`` of ``--l2-adapter``; None: raw KV.
        least_ratio: Raw over stored bytes that it must reach.
        least_cosine: Between the objects and what was restored; 1: every bit.
        is_ours: Whether the targets are about it.
        needs_pristine: Whether it is LMCache's own code that the fork replaces, and
            runs on a GPU alone.
    """

    name: str
    serde: dict[str, object] | None
    least_ratio: float = 1.9
    least_cosine: float = 0.97
    is_ours: bool = False
    needs_pristine: bool = False


def _ours(preset: str) -> Scheme:
    return Scheme(name=preset, serde=_turboquant(preset), is_ours=True)


def _turboquant(preset: str) -> dict[str, object]:
    return {"type": "turboquant", "preset": preset} | _EVERY_LAYER


SCHEMES = (
    Scheme(name=NO_SERDE, serde=None, least_ratio=1.0, least_cosine=1.0),
    Scheme(name="LMCache fp8", serde={"type": "fp8"}),
    _ours("turboquant_k8v4"),
    _ours("turboquant_4bit_nc"),
    _ours("turboquant_4bit_cc"),
    Scheme(
        name=UPSTREAM,
        serde=_turboquant("turboquant_4bit_nc"),
        needs_pristine=True,
    ),
)


def scheme_named(name: str) -> Scheme:
    """Return the scheme of that name."""
    return next(scheme for scheme in SCHEMES if scheme.name == name)
