# SPDX-License-Identifier: Apache-2.0
"""The side table of a payload: what the slots of one head have in common.

For each calibrated field, ``statistics | kept rows | positions``, each of all layers
and heads, without padding. Statistics are bfloat16 ``[layers, heads, 2 * dim]``. Kept
rows are the vectors that lie farthest from the others, as bfloat16
``[layers, heads, kept, dim]``; positions are the indices of their tokens, int32
``[layers, heads, kept]``, ascending.
"""

# Standard
from dataclasses import dataclass
from functools import cached_property
import math

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.slot import KeyField

STATISTICS_DTYPE = torch.bfloat16
POSITION_DTYPE = torch.int32


@dataclass(frozen=True, kw_only=True)
class SideTablePart:
    """The side table of one field, as views of its bytes.

    Attributes:
        statistics: bfloat16 ``[layers, heads, 2 * dim]``: means, then spreads.
        rows: bfloat16 ``[layers, heads, kept, dim]``.
        positions: int32 ``[layers, heads, kept]``.
    """

    statistics: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class SideTableLayout:
    """Sizes and offsets of a side table.

    Attributes:
        num_layers: Compressed layers.
        num_heads: Heads.
        num_kept: Vectors of a head that are kept.
        fields: The calibrated fields of a slot, in order.
    """

    num_layers: int
    num_heads: int
    num_kept: int
    fields: tuple[KeyField, ...]

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the table."""
        return self.num_layers * sum(self.layer_bytes)

    @cached_property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of one layer in each of the arrays, in order."""
        return tuple(
            math.prod(shape[1:]) * dtype.itemsize
            for field in self.fields
            for shape, dtype in self._arrays(field)
        )

    def parts(self, table: torch.Tensor) -> tuple[SideTablePart, ...]:
        """View a table's bytes as numbers.

        Args:
            table: uint8 tensor of ``num_bytes``, aligned to four bytes.

        Returns:
            A part for each of ``fields``.
        """
        parts, start = [], 0
        for field in self.fields:
            views = []
            for shape, dtype in self._arrays(field):
                stop = start + math.prod(shape) * dtype.itemsize
                views.append(table[start:stop].view(dtype).view(shape))
                start = stop
            statistics, rows, positions = views
            part = SideTablePart(statistics=statistics, rows=rows, positions=positions)
            parts.append(part)
        return tuple(parts)

    def _arrays(self, field: KeyField) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and dtype of a field's statistics, rows and positions."""
        heads = (self.num_layers, self.num_heads)
        return [
            ((*heads, field.num_statistics), STATISTICS_DTYPE),
            ((*heads, self.num_kept, field.dim), STATISTICS_DTYPE),
            ((*heads, self.num_kept), POSITION_DTYPE),
        ]
