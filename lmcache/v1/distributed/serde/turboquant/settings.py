# SPDX-License-Identifier: Apache-2.0
"""Checks of single settings, and messages that help."""

# Standard
from collections.abc import Mapping
from difflib import get_close_matches
import math

# First Party
from lmcache.v1.distributed.serde.turboquant.slot import (
    INDICES_PER_PACK,
    MAX_HEAD_DIM,
)

MAX_ROPE_THETA = 1e30
"""What float32, in which a header holds it, has room for."""


def require_head_dim(name: str, value: object, *, minimum: int) -> None:
    """Check that a setting is a width that a slot can have.

    Args:
        name: The setting's name, for the message.
        value: What was given.
        minimum: Smallest value allowed.

    Raises:
        ValueError: If ``value`` is anything else.
    """
    dim = require_int(name, value, minimum=minimum)
    if dim and not is_head_dim(dim):
        raise ValueError(
            f"TurboQuant {name} must be a multiple of {INDICES_PER_PACK} up to "
            f"{MAX_HEAD_DIM}, got {dim}"
        )


def is_head_dim(dim: int) -> bool:
    """Return whether a slot can hold vectors of ``dim`` dimensions."""
    return 0 < dim <= MAX_HEAD_DIM and dim % INDICES_PER_PACK == 0


def require_int(name: str, value: object, *, minimum: int) -> int:
    """Check that a setting is an integer of at least ``minimum``.

    Args:
        name: The setting's name, for the message.
        value: What was given; ``bool`` does not count as an integer.
        minimum: Smallest value allowed.

    Returns:
        ``value``.

    Raises:
        ValueError: If ``value`` is anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(
            f"TurboQuant {name} must be an integer >= {minimum}, got {value!r}"
        )
    return value


def require_rope_theta(value: object) -> None:
    """Check that a setting is a base of rotary angles, or 0.

    Args:
        value: What was given.

    Raises:
        ValueError: If it is not a number from 1 to 1e30, or 0.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    if not (number == 0 or 1 <= number <= MAX_ROPE_THETA):
        raise ValueError(
            "TurboQuant rope_theta must be 0 or a number from 1 to "
            f"{MAX_ROPE_THETA:g}, got {value!r}"
        )


def reject_unknown_keys(kwargs: Mapping[str, object], known: list[str]) -> None:
    """Check that every key of a serde JSON is one that the serde reads.

    Args:
        kwargs: The keys given.
        known: The keys that exist.

    Raises:
        ValueError: If a key is unknown; the message suggests the nearest.
    """
    for key in kwargs:
        if key not in known:
            raise ValueError(
                f"Unknown TurboQuant setting {key!r}, expected one of "
                f"{', '.join(known)}{did_you_mean(key, known)}"
            )


def did_you_mean(name: str, known: list[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, or ``""``.

    Args:
        name: The name given.
        known: The names that exist, the commoner first: of those that a name cut
            short could be, the first is suggested.
    """
    completed = [choice for choice in known if name and choice.startswith(name)]
    nearest = completed or get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
