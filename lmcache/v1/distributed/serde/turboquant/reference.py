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
from lmcache.v1.distributed.serde.turboquant.rotation import (
    rotate,
    row_norms,
    unrotate,
)
from lmcache.v1.distributed.serde.turboquant.slot import (
    FP16_BYTES,
    INDICES_PER_PACK,
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
    side_table: torch.Tensor | None = None,
) -> None:
    """Quantise layers into slots.

    Args:
        views: Keys, and values or None, ``[layers, tokens, heads, dim]`` of
            float16, bfloat16 or float32, with any strides.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``; every byte of it is
            written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        side_table: bfloat16 ``[layers, heads, slot.num_statistics]``, which is
            written, where the slot has statistics.
    """
    slots[..., slot.used_bytes :] = 0
    for view, field, start, statistics in _fields(views, slot, side_table):
        stored = slots[..., start : start + field.num_bytes]
        for index in range(slots.shape[0]):
            rows, shared = view[index].float(), None
            if statistics is not None and isinstance(field, KeyField):
                shared = statistics[index]
                shared[:] = calibration.measure(_saturated(rows, FP16_MAX), field)
            stored[index] = encode_field(rows, field, first_layer + index, shared)


def decode_layers(
    slots: torch.Tensor,
    views: KVViews,
    slot: SlotLayout,
    first_layer: int,
    side_table: torch.Tensor | None = None,
) -> None:
    """Restore layers from slots.

    Args:
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        views: Keys, and values or None, ``[layers, tokens, heads, dim]``; every
            element is written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        side_table: What :func:`encode_layers` wrote, where the slot has statistics.
    """
    for view, field, start, statistics in _fields(views, slot, side_table):
        stored = slots[..., start : start + field.num_bytes]
        for index in range(slots.shape[0]):
            shared = None if statistics is None else statistics[index]
            rows = decode_field(stored[index], field, first_layer + index, shared)
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
    indices = torch.bucketize(
        rotate(rows / torch.where(norms > 0, norms, 1), layer),
        tables.boundaries(field.dim, field.bits).to(rows.device),
        right=True,
    )
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


def pack(indices: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack indices, lowest bits first.

    Eight indices make one little-endian word of ``bits`` bytes: two nibbles a
    byte at 4 bits, a 24-bit word at 3 bits.

    Args:
        indices: int64 tensor ``[..., n]`` of values below ``2 ** bits``;
            ``n`` is a multiple of 8.
        bits: Bits an index, at most 4.

    Returns:
        uint8 tensor ``[..., n * bits / 8]``.
    """
    num_groups = indices.shape[-1] // INDICES_PER_PACK
    groups = indices.unflatten(-1, (num_groups, INDICES_PER_PACK))
    shifts = torch.arange(INDICES_PER_PACK, device=indices.device) * bits
    words = (groups << shifts).sum(dim=-1, keepdim=True)
    byte_shifts = torch.arange(bits, device=indices.device) * 8
    return ((words >> byte_shifts) & 0xFF).to(torch.uint8).flatten(-2)


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Undo :func:`pack`.

    Args:
        packed: uint8 tensor ``[..., n * bits / 8]``.
        bits: Bits an index, at most 4.

    Returns:
        int64 tensor ``[..., n]``.
    """
    groups = packed.long().unflatten(-1, (packed.shape[-1] // bits, bits))
    byte_shifts = torch.arange(bits, device=packed.device) * 8
    words = (groups << byte_shifts).sum(dim=-1, keepdim=True)
    shifts = torch.arange(INDICES_PER_PACK, device=packed.device) * bits
    return ((words >> shifts) & (2**bits - 1)).flatten(-2)


def _fields(
    views: KVViews, slot: SlotLayout, side_table: torch.Tensor | None
) -> list[tuple[torch.Tensor, Field, int, torch.Tensor | None]]:
    """Pair each view with its field, the field's offset and its statistics."""
    keys, values = views
    key_part = value_part = None
    if side_table is not None and slot.num_statistics:
        key_part = side_table[..., : slot.key.num_statistics]
        value_part = side_table[..., slot.key.num_statistics :]
    fields: list[tuple[torch.Tensor, Field, int, torch.Tensor | None]] = [
        (keys, slot.key, 0, key_part)
    ]
    if values is not None and slot.value is not None:
        has_part = slot.num_statistics > slot.key.num_statistics
        part = value_part if has_part else None
        fields.append((values, slot.value, slot.value_offset, part))
    return fields


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
    pair = stored[..., offset : offset + FP16_BYTES].contiguous()
    return pair.view(torch.float16).float()


def _to_dtype(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float32 to ``dtype``; finite numbers saturate, they do not overflow."""
    return _saturated(numbers, torch.finfo(dtype).max).to(dtype)


def _saturated(numbers: torch.Tensor, limit: float) -> torch.Tensor:
    """Clamp finite numbers to ``[-limit, limit]``; pass on the others."""
    clamped = numbers.clamp(-limit, limit)
    return torch.where(numbers.isfinite(), clamped, numbers)
