# SPDX-License-Identifier: Apache-2.0
"""The specification of the codec, in plain torch, for any device.

Every step is an elementwise float32 operation in a fixed order (sums are
trees, the rotation is butterflies), so the bytes depend on the input alone:
not on the device, the number of threads or how rows are batched. Faster
backends are tested against this module.
"""

# Standard
from collections.abc import Callable

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import (
    calibration,
    tables,
    trellis,
    values,
)
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.packing import (
    FP16_MAX,
    half_at,
    half_bytes,
    pack,
    saturated,
    unpack,
)
from lmcache.v1.distributed.serde.turboquant.rotation import (
    rotate,
    row_norms,
    row_sums,
    unrotate,
)
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart
from lmcache.v1.distributed.serde.turboquant.slot import (
    Field,
    KeyField,
    SlotLayout,
    ValueField,
)

FP8_DTYPE = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8_DTYPE).max


def encode_layers(
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    side_table: tuple[SideTablePart, ...] = (),
    encode: Callable[..., torch.Tensor] | None = None,
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
        encode: What quantises the vectors of a layer: :func:`encode_field`, or a
            function of the same arguments.
    """
    encode = encode or encode_field
    slots[..., slot.used_bytes :] = 0
    for view, field, start, part in _fields(views, slot, side_table):
        stored = slots[..., start : start + field.num_bytes]
        for index in range(slots.shape[0]):
            rows, statistics = view[index].float(), None
            if part is not None and isinstance(field, KeyField):
                statistics = part.statistics[index]
                rows = saturated(rows, FP16_MAX)
                statistics[:], distances = calibration.measure(rows, field)
                positions = calibration.farthest(distances, part.positions.shape[-1])
                part.positions[index] = positions
                part.rows[index] = calibration.kept_rows(rows, positions)
            stored[index] = encode(rows, field, first_layer + index, statistics)


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
    rows = saturated(rows, FP16_MAX)
    if isinstance(field, ValueField):
        numbers = values.range_of(rows, field)
        levels = values.value_levels(rows, *numbers, field)
        return values.store_values(levels, *numbers, field)
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
    encode = trellis.encode if field.is_trellis else key_indices
    indices = encode(directions, field)
    if field.is_averaged:
        norms = norms / _overlaps(directions, indices, field)
    return store_keys(indices, norms.copysign(signs), field)


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
        return values.load_values(stored, field)
    if field.is_fp8:
        return stored.contiguous().view(FP8_DTYPE).float()
    indices = unpack(stored[..., : field.norm_offset], field.bits)
    directions = _directions_of(indices, field)
    norms = half_at(stored, field.norm_offset)
    if statistics is None:
        return unrotate(directions / row_norms(directions) * norms, layer)
    rows = unrotate(directions / row_norms(directions) * norms.abs(), layer)
    restored = calibration.from_relative(rows, statistics, field)
    return torch.where(norms.signbit(), restored, rows)


def key_indices(coordinates: torch.Tensor, field: KeyField) -> torch.Tensor:
    """Count the codebook's boundaries at or below each coordinate.

    Args:
        coordinates: float32 ``[..., field.dim]``, on the codebook's scale.
        field: Byte layout of the field.

    Returns:
        int64 tensor of the same shape.
    """
    edges = tables.boundaries(field.dim, field.bits).to(coordinates.device)
    return torch.bucketize(coordinates, edges, right=True)


def store_keys(
    indices: torch.Tensor, norms: torch.Tensor, field: KeyField
) -> torch.Tensor:
    """Write down indices and norms.

    Args:
        indices: int64 ``[..., field.dim]``.
        norms: float32 ``[..., 1]``.
        field: Byte layout of the field.

    Returns:
        uint8 tensor ``[..., field.num_bytes]``.
    """
    return torch.cat([pack(indices, field.bits), half_bytes(norms)], dim=-1)


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


def _directions_of(indices: torch.Tensor, field: KeyField) -> torch.Tensor:
    """Return the directions, of any length, that indices stand for."""
    if field.is_trellis:
        return trellis.decode(indices, field)
    return tables.centroids(field.dim, field.bits).to(indices.device)[indices]


def _overlaps(
    directions: torch.Tensor, indices: torch.Tensor, field: KeyField
) -> torch.Tensor:
    """Return the cosines of unit vectors and what their indices stand for.

    With the norm divided by it, the restored vector's projection on the original is
    the original: errors of many vectors average out, where shrinking would not.
    """
    codes = _directions_of(indices, field)
    cosines = row_sums(directions * codes) / row_norms(codes)
    return torch.where(cosines > 0, cosines, 1)


def _to_dtype(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float32 to ``dtype``; finite numbers saturate, they do not overflow."""
    return saturated(numbers, torch.finfo(dtype).max).to(dtype)
