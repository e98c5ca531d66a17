# SPDX-License-Identifier: Apache-2.0
"""The CPU backend: what ``reference`` specifies, at the speed of memory."""

# Standard
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.effort import PLAIN, Effort
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import Kernel
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_decode import DECODE_KERNELS
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_encode import ENCODE_KERNELS
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_measure import (
    HEADS_PER_GROUP,
    measure_groups,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    Plan,
    make_constants,
    make_plan,
    num_tiles,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_searched import searching_work
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_side_table import (
    make_table_plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_statistics import (
    NO_ROTARY,
    NO_STATISTICS,
    Rotary,
    Statistics,
    rotary_of,
    statistics_of,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_threads import (
    run,
    share_out,
)
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart
from lmcache.v1.distributed.serde.turboquant.slot import Field, KeyField, SlotLayout

_TILES_PER_SHARE = 64

_TILES_PER_PASS = 512
"""Tiles of which one field after the other is done: their slots stay in cache."""


def supports(views: KVViews, slots: torch.Tensor) -> bool:
    """Return whether the kernels can work on these tensors.

    Args:
        views: Keys, and values or None, ``[layers, tokens, heads, dim]``.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.

    Returns:
        False where ``reference`` has to do the work: on accelerators, and on
        vectors whose elements are apart.
    """
    return (
        all(view is None or view.is_cpu and view.stride(-1) == 1 for view in views)
        and slots.is_cpu
        and slots.stride(1) == slots.shape[2] * slots.stride(2)
        and slots.stride(3) == 1
    )


def encode_layers(
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    threads: int,
    side_table: tuple[SideTablePart, ...] = (),
    effort: Effort = PLAIN,
) -> None:
    """Quantise layers into slots: the bytes of ``search.encode_layers``.

    Args:
        views: Keys and values that :func:`supports`.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``; every byte of it is
            written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        threads: Threads to work with, as in ``cpu_threads.run``. The bytes do not
            depend on it.
        side_table: A part of contiguous tensors, which is written, for each
            calibrated field.
        effort: What to try.
    """
    if not slots.numel():
        return
    payload, works = _memory_of(slots), []
    parts = _parts(views, slots, slot, first_layer, side_table)
    for part in parts:
        if part.side_table is not None:
            _measure(part, threads)
        if effort.searches(part.field):
            source, where = _memory_of(part.view), (part.plan, part.field, part.layers)
            works.append(searching_work(source, payload, *where, effort, threads))
        else:
            works.append(_work(ENCODE_KERNELS, part, payload))
    _run_on_tiles(works, parts[0], threads)


def decode_layers(
    slots: torch.Tensor,
    views: KVViews,
    slot: SlotLayout,
    first_layer: int,
    threads: int,
    side_table: tuple[SideTablePart, ...] = (),
) -> None:
    """Restore layers from slots, as ``reference.decode_layers`` does.

    Args:
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        views: Keys and values that :func:`supports`; every element is written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        threads: As in :func:`encode_layers`.
        side_table: What :func:`encode_layers` wrote.
    """
    if not slots.numel():
        return
    parts = _parts(views, slots, slot, first_layer, side_table)
    works = [_work(DECODE_KERNELS, part, _memory_of(slots)) for part in parts]
    _run_on_tiles(works, parts[0], threads)
    for part in parts:
        if part.side_table is not None:
            _put_back(part.view, part.side_table)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A view and the field that it is stored in.

    Attributes:
        view: Head vectors ``[layers, tokens, heads, dim]``.
        field: Byte layout of the field.
        plan: Where head vectors and fields are.
        layers: Indices of the layers within the tensor.
        side_table: Side table of a calibrated field, else None.
    """

    view: torch.Tensor
    field: Field
    plan: Plan
    layers: range
    side_table: SideTablePart | None

    @property
    def rotary(self) -> Rotary:
        """Angles of a calibrated field."""
        if isinstance(self.field, KeyField):
            return rotary_of(self.field, self.plan.num_tokens)
        return NO_ROTARY

    @property
    def statistics(self) -> Statistics:
        """Statistics as they are in the side table now."""
        if self.side_table is None or not isinstance(self.field, KeyField):
            return NO_STATISTICS
        return statistics_of(self.side_table.statistics, self.field)


def _parts(
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    side_table: tuple[SideTablePart, ...],
) -> list[_Part]:
    """Pair each view with its field and the field's side table."""
    parts, tables = [], list(side_table)
    layers = range(first_layer, first_layer + slots.shape[0])
    for view, (field, offset) in zip(views, slot.fields, strict=False):
        if view is None:
            raise ValueError(f"Expected two views for slots of {slot}, got one")
        table = None
        if isinstance(field, KeyField) and field.is_calibrated:
            if not tables:
                raise ValueError(f"Expected a side table for slots of {slot}")
            table = tables.pop(0)
        plan = make_plan(view, slots, slot, field, offset)
        parts.append(
            _Part(view=view, field=field, plan=plan, layers=layers, side_table=table)
        )
    return parts


def _measure(part: _Part, threads: int) -> None:
    """Fill a part's side table."""
    table, plan = part.side_table, part.plan
    if table is None:
        return
    work = partial(
        measure_groups,
        _memory_of(part.view),
        _memory_of(table.statistics),
        plan,
        part.rotary,
        make_table_plan(table),
    )
    groups = len(part.layers) * -(-plan.num_heads // HEADS_PER_GROUP)
    shares = share_out(groups, threads, unit=1, least=1)
    run([partial(work, share.start, share.stop) for share in shares], threads)


def _put_back(view: torch.Tensor, table: SideTablePart) -> None:
    """Replace the keys that the side table holds."""
    num_layers, num_heads, _ = table.positions.shape
    layers = torch.arange(num_layers)[:, None, None]
    heads = torch.arange(num_heads)[:, None]
    positions = table.positions.long().clamp(0, view.shape[1] - 1)
    limit = torch.finfo(view.dtype).max
    rows = table.rows.float()
    rows = torch.where(rows.isfinite(), rows.clamp(-limit, limit), rows)
    view[layers, positions, heads] = rows.to(view.dtype)


def _work(
    kernels: tuple[Kernel, Kernel], part: _Part, payload: np.ndarray
) -> Callable[..., None]:
    """Return what runs a kernel on a part of the tiles from one to before another."""
    constants = make_constants(part.field, part.layers)
    return partial(
        kernels[constants.trellis is not None],
        _memory_of(part.view),
        payload,
        part.plan,
        constants,
        part.statistics,
        part.rotary,
    )


def _run_on_tiles(works: list[Callable[..., None]], part: _Part, threads: int) -> None:
    """Do all works on every tile, of which each part has as many as ``part``."""
    tiles = num_tiles(part.plan) * len(part.layers)
    shares = share_out(tiles, threads, unit=1, least=_TILES_PER_SHARE)
    run([partial(_run_share, works, share) for share in shares], threads)


def _run_share(works: list[Callable[..., None]], share: range) -> None:
    """Do all works on a share of tiles, some tiles at a time."""
    for first in share[::_TILES_PER_PASS]:
        last = min(first + _TILES_PER_PASS, share.stop)
        for work in works:
            work(first, last)


def _memory_of(tensor: torch.Tensor) -> np.ndarray:
    """View the storage that a tensor lies in as one array of bytes."""
    memory = torch.empty(0, dtype=torch.uint8)
    return memory.set_(tensor.untyped_storage()).numpy()
