# SPDX-License-Identifier: Apache-2.0
"""The specification of the codec, in plain torch, for any device.

Every step is an elementwise float32 operation in a fixed order (sums are
trees, the rotation is butterflies), so the bytes depend on the input alone:
not on the device, the number of threads or how rows are batched. Faster
backends are tested against this module.
"""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import calibration, tables
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.packing import pack, unpack
from lmcache.v1.distributed.serde.turboquant.rotation import (
    rotate,
    row_norms,
    row_sums,
    unrotate,
)
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart
from lmcache.v1.distributed.serde.turboquant.slot import (
    FP16_BYTES,
    Field,
    KeyField,
    SlotLayout,
    ValueField,
)

FP8_DTYPE = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8_DTYPE).max
FP16_MAX = torch.finfo(torch.float16).max


def encode_layers(
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    side_table: tuple[SideTablePart, ...] = (),
) -> None:
    """Quantise layers into slots.

    Args:
        views: Keys, and values or None, ``[layers, tokens, heads, dim]`` of
            float16, bfloat16 or float32, with any strides.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``; every byte of it is
            written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        side_table: A part, which is written, for each calibrated field.
    """
    slots[..., slot.used_bytes :] = 0
    for view, field, start, part in _fields(views, slot, side_table):
        stored = slots[..., start : start + field.num_bytes]
        for index in range(slots.shape[0]):
            rows, statistics = view[index].float(), None
            if part is not None and isinstance(field, KeyField):
                statistics = part.statistics[index]
                rows = _saturated(rows, FP16_MAX)
                statistics[:], distances = calibration.measure(rows, field)
                positions = calibration.farthest(distances, part.positions.shape[-1])
                part.positions[index] = positions
                part.rows[index] = calibration.kept_rows(rows, positions)
            stored[index] = encode_field(rows, field, first_layer + index, statistics)


def decode_layers(
    slots: torch.Tensor,
    views: KVViews,
    slot: SlotLayout,
    first_layer: int,
    side_table: tuple[SideTablePart, ...] = (),
) -> None:
    """Restore layers from slots.

    Args:
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        views: Keys, and values or None, ``[layers, tokens, heads, dim]``; every
            element is written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        side_table: What :func:`encode_layers` wrote.
    """
    for view, field, start, part in _fields(views, slot, side_table):
        stored = slots[..., start : start + field.num_bytes]
        for index in range(slots.shape[0]):
            statistics = None if part is None else part.statistics[index]
            rows = decode_field(stored[index], field, first_layer + index, statistics)
            if part is not None:
                kept, positions = part.rows[index], part.positions[index]
                rows = calibration.put_back(rows, kept, positions)
            view[index] = _to_dtype(rows, view.dtype)


def encode_field(
    rows: torch.Tensor,
    field: Field,
    layer: int,
    statistics: torch.Tensor | None = None,
) -> torch.Tensor:
    """Quantise vectors into one field of their slots.

    Numbers beyond float16 saturate at its largest; NaN and infinities make their
    row non-finite.

    Args:
        rows: float32 vectors ``[..., field.dim]``; ``[tokens, heads, field.dim]``
            where they are calibrated.
        field: Byte layout of the field.
        layer: Index of the layer within the tensor.
        statistics: bfloat16 ``[heads, field.num_statistics]`` of ``measure``, where
            the field is calibrated.

    Returns:
        uint8 tensor ``[..., field.num_bytes]``.
    """
    rows = _saturated(rows, FP16_MAX)
    if isinstance(field, ValueField):
        return _encode_values(rows, field)
    if field.is_fp8:
        return rows.clamp(-FP8_MAX, FP8_MAX).to(FP8_DTYPE).view(torch.uint8)
    norms = row_norms(rows)
    signs = torch.ones_like(norms)
    if statistics is not None:
        relative = calibration.to_relative(rows, statistics, field)
        relative_norms = row_norms(relative)
        is_better = relative_norms * calibration.error_gain(statistics, field) < norms
        rows = torch.where(is_better, relative, rows)
        norms = torch.where(is_better, relative_norms, norms)
        signs = torch.where(is_better, -signs, signs)
    directions = rotate(rows / torch.where(norms > 0, norms, 1), layer)
    bounds = tables.boundaries(field.dim, field.bits).to(rows.device)
    indices = torch.bucketize(directions, bounds, right=True)
    if field.is_averaged:
        norms = norms / _overlaps(directions, indices, field)
    packed = pack(indices, field.bits)
    return torch.cat([packed, _fp16_bytes(norms.copysign(signs))], dim=-1)


def decode_field(
    stored: torch.Tensor,
    field: Field,
    layer: int,
    statistics: torch.Tensor | None = None,
) -> torch.Tensor:
    """Restore vectors from one field of their slots.

    Args:
        stored: uint8 tensor ``[..., field.num_bytes]``.
        field: Byte layout of the field.
        layer: Index of the layer within the tensor.
        statistics: As in :func:`encode_field`.

    Returns:
        float32 vectors ``[..., field.dim]``.
    """
    if isinstance(field, ValueField):
        levels = unpack(stored[..., : field.scale_offset], field.bits).float()
        scales = _fp16_at(stored, field.scale_offset)
        return levels * scales + _fp16_at(stored, field.zero_offset)
    if field.is_fp8:
        return stored.contiguous().view(FP8_DTYPE).float()
    codebook = tables.centroids(field.dim, field.bits).to(stored.device)
    directions = codebook[unpack(stored[..., : field.norm_offset], field.bits)]
    norms = _fp16_at(stored, field.norm_offset)
    if statistics is None:
        return unrotate(directions / row_norms(directions) * norms, layer)
    rows = unrotate(directions / row_norms(directions) * norms.abs(), layer)
    restored = calibration.from_relative(rows, statistics, field)
    return torch.where(norms.signbit(), restored, rows)


def _fields(
    views: KVViews, slot: SlotLayout, side_table: tuple[SideTablePart, ...]
) -> list[tuple[torch.Tensor, Field, int, SideTablePart | None]]:
    """Pair each view with its field, the field's offset and its side table."""
    fields: list[tuple[torch.Tensor, Field, int, SideTablePart | None]] = []
    parts = iter(side_table)
    offsets = (0, slot.value_offset)
    for view, field, offset in zip(views, (slot.key, slot.value), offsets, strict=True):
        if view is not None and field is not None:
            is_calibrated = isinstance(field, KeyField) and field.is_calibrated
            fields.append((view, field, offset, next(parts) if is_calibrated else None))
    return fields


def _overlaps(
    directions: torch.Tensor, indices: torch.Tensor, field: KeyField
) -> torch.Tensor:
    """Return the cosines of unit vectors and what their indices stand for.

    With the norm divided by it, the restored vector's projection on the original is
    the original: errors of many vectors average out, where shrinking would not.
    """
    codes = tables.centroids(field.dim, field.bits).to(indices.device)[indices]
    cosines = row_sums(directions * codes) / row_norms(codes)
    return torch.where(cosines > 0, cosines, 1)


def _encode_values(rows: torch.Tensor, field: ValueField) -> torch.Tensor:
    """Quantise to uniform levels between each row's extremes.

    Levels are chosen for the scale and zero point as they are stored.
    """
    lowest = rows.amin(dim=-1, keepdim=True)
    top_level = 2**field.bits - 1
    spans = rows.amax(dim=-1, keepdim=True) - lowest
    # Divide by a tensor: by a number, some devices multiply by the reciprocal.
    scales = (spans / torch.full_like(spans, top_level)).to(torch.float16)
    zeros = lowest.to(torch.float16)
    steps = scales.float()
    levels = (rows - zeros.float()) / torch.where(steps > 0, steps, torch.inf)
    levels = (levels + 0.5).floor().nan_to_num(nan=0).clamp(0, top_level)
    packed = pack(levels.long(), field.bits)
    return torch.cat([packed, *(x.view(torch.uint8) for x in (scales, zeros))], -1)


def _fp16_bytes(numbers: torch.Tensor) -> torch.Tensor:
    """Round ``[..., 1]`` float32 to float16, saturating; return ``[..., 2]`` bytes."""
    return _saturated(numbers, FP16_MAX).to(torch.float16).view(torch.uint8)


def _fp16_at(stored: torch.Tensor, offset: int) -> torch.Tensor:
    """Read the float16 at ``offset`` of each field as float32 ``[..., 1]``."""
    # A clone starts at an even address, which one row of a slot may not.
    pair = stored[..., offset : offset + FP16_BYTES].clone(
        memory_format=torch.contiguous_format
    )
    return pair.view(torch.float16).float()


def _to_dtype(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float32 to ``dtype``; finite numbers saturate, they do not overflow."""
    return _saturated(numbers, torch.finfo(dtype).max).to(dtype)


def _saturated(numbers: torch.Tensor, limit: float) -> torch.Tensor:
    """Clamp finite numbers to ``[-limit, limit]``; pass on the others."""
    clamped = numbers.clamp(-limit, limit)
    return torch.where(numbers.isfinite(), clamped, numbers)
