# SPDX-License-Identifier: Apache-2.0
"""Statistics of calibrated keys, as the CPU kernels read them."""

# Standard
from functools import lru_cache
from typing import NamedTuple

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables
from lmcache.v1.distributed.serde.turboquant.calibration import error_gain
from lmcache.v1.distributed.serde.turboquant.slot import KeyField


class Rotary(NamedTuple):
    """What turns keys back: ``z[i] = x[i] * cosine[i] + x[i + dim / 2] * sine[i]``.

    Indices count modulo ``dim``, so that the second of a pair is turned as the
    first is. Where the field has no rotary embedding, both are empty.

    Attributes:
        cosines: float32 ``[tokens, dim]``, as bytes.
        sines: float32 ``[tokens, dim]``, as bytes; negative for the second half.
    """

    cosines: np.ndarray
    sines: np.ndarray


class Statistics(NamedTuple):
    """The statistics of a field, ``[layers, heads, dim]`` each, as bytes.

    Attributes:
        means: float32.
        spreads: float32, positive.
        inverses: float32, one over the spread.
        turned: int32, -1 where the dimension is turned, else 0.
        gains: How much an error grows on the way back: float32
            ``[layers * heads]``, not as bytes.
    """

    means: np.ndarray
    spreads: np.ndarray
    inverses: np.ndarray
    turned: np.ndarray
    gains: np.ndarray


def _as_bytes(numbers: torch.Tensor) -> np.ndarray:
    """View a contiguous copy of numbers as bytes."""
    return numbers.contiguous().view(-1).view(torch.uint8).numpy()


_NO_BYTES = np.empty(0, np.uint8)

NO_ROTARY = Rotary(_NO_BYTES, _NO_BYTES)

NO_STATISTICS = Statistics(*(_NO_BYTES,) * 4, gains=np.empty(0, dtype=np.float32))


@lru_cache(maxsize=4)
def rotary_of(field: KeyField, num_tokens: int) -> Rotary:
    """Write down the angles of a field.

    Args:
        field: Byte layout of the field.
        num_tokens: Tokens of a layer.

    Returns:
        The angles; ``NO_ROTARY`` where it has none.
    """
    if not field.rope_theta:
        return NO_ROTARY
    cosines, sines = tables.rotary(field.dim, field.rope_theta, num_tokens)
    return Rotary(
        cosines=_as_bytes(torch.cat([cosines, cosines], dim=-1)),
        sines=_as_bytes(torch.cat([sines, -sines], dim=-1)),
    )


def statistics_of(side_table: torch.Tensor, field: KeyField) -> Statistics:
    """Unfold a side table.

    Args:
        side_table: bfloat16 ``[layers, heads, 2 * dim]`` of ``calibration.measure``.
        field: Byte layout of the field.

    Returns:
        What the kernels read.
    """
    means, spreads = side_table.float().split(field.dim, dim=-1)
    is_turned = spreads[..., : field.dim // 2].signbit().int()
    spreads = spreads.abs()
    return Statistics(
        means=_as_bytes(means),
        spreads=_as_bytes(spreads),
        inverses=_as_bytes(1 / spreads),
        turned=_as_bytes(-torch.cat([is_turned, is_turned], dim=-1)),
        gains=error_gain(side_table, field).reshape(-1).numpy(),
    )
