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
from lmcache.v1.distributed.serde.turboquant import tables
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.slot import (
    FP16_BYTES,
    INDICES_PER_PACK,
    Field,
    SlotLayout,
    ValueField,
)

FP8_DTYPE = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8_DTYPE).max
FP16_MAX = torch.finfo(torch.float16).max


def encode_layers(
    views: KVViews, slots: torch.Tensor, slot: SlotLayout, first_layer: int
) -> None:
    """Quantise layers into slots.

    Args:
        views: Keys, and values or None, ``[layers, tokens, heads, dim]`` of
            float16, bfloat16 or float32, with any strides.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``; every byte of it is
            written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
    """
    slots[..., slot.used_bytes :] = 0
    for view, field, start in _fields(views, slot):
        stored = slots[..., start : start + field.num_bytes]
        for index in range(slots.shape[0]):
            rows = view[index].float()
            stored[index] = encode_field(rows, field, first_layer + index)


def decode_layers(
    slots: torch.Tensor, views: KVViews, slot: SlotLayout, first_layer: int
) -> None:
    """Restore layers from slots.

    Args:
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        views: Keys, and values or None, ``[layers, tokens, heads, dim]``; every
            element is written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
    """
    for view, field, start in _fields(views, slot):
        stored = slots[..., start : start + field.num_bytes]
        for index in range(slots.shape[0]):
            rows = decode_field(stored[index], field, first_layer + index)
            view[index] = _to_dtype(rows, view.dtype)


def encode_field(rows: torch.Tensor, field: Field, layer: int) -> torch.Tensor:
    """Quantise vectors into one field of their slots.

    Numbers beyond float16 saturate at its largest; NaN and infinities make their
    row non-finite.

    Args:
        rows: float32 vectors ``[..., field.dim]``.
        field: Byte layout of the field.
        layer: Index of the layer within the tensor.

    Returns:
        uint8 tensor ``[..., field.num_bytes]``.
    """
    rows = _saturated(rows, FP16_MAX)
    if isinstance(field, ValueField):
        return _encode_values(rows, field)
    if field.is_fp8:
        return rows.clamp(-FP8_MAX, FP8_MAX).to(FP8_DTYPE).view(torch.uint8)
    norms = row_norms(rows)
    indices = torch.bucketize(
        rotate(rows / torch.where(norms > 0, norms, 1), layer),
        tables.boundaries(field.dim, field.bits).to(rows.device),
        right=True,
    )
    return torch.cat([pack(indices, field.bits), _fp16_bytes(norms)], dim=-1)


def decode_field(stored: torch.Tensor, field: Field, layer: int) -> torch.Tensor:
    """Restore vectors from one field of their slots.

    Args:
        stored: uint8 tensor ``[..., field.num_bytes]``.
        field: Byte layout of the field.
        layer: Index of the layer within the tensor.

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
    return unrotate(directions / row_norms(directions) * norms, layer)


def rotate(rows: torch.Tensor, layer: int) -> torch.Tensor:
    """Apply a layer's random rotation ``y = W (signs * x)``.

    ``W`` is the orthonormal Sylvester Hadamard matrix. Where head_dim is not
    a power of two, it is the Kronecker product of the Hartley matrix of the
    odd factor and the Hadamard matrix of the power of two: orthonormal,
    symmetric, and without a coordinate left unmixed. It is no uniformly random
    rotation: a row of few entries that are not zero takes few values.

    Args:
        rows: float32 tensor ``[..., head_dim]``.
        layer: Index of the layer within the memory object.

    Returns:
        float32 tensor of the same shape.
    """
    return _mix(rows * tables.rotation_signs(rows.shape[-1], layer).to(rows.device))


def unrotate(rows: torch.Tensor, layer: int) -> torch.Tensor:
    """Undo :func:`rotate`: ``x = signs * (W y)``, as ``W`` is its own inverse.

    Args:
        rows: float32 tensor ``[..., head_dim]``.
        layer: Index of the layer within the memory object.

    Returns:
        float32 tensor of the same shape.
    """
    return _mix(rows) * tables.rotation_signs(rows.shape[-1], layer).to(rows.device)


def row_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return Euclidean norms ``[..., 1]`` of ``rows``, summed as a tree."""
    sums = rows * rows
    while sums.shape[-1] % 2 == 0:
        left, right = sums.chunk(2, dim=-1)
        sums = left + right
    total = sums[..., :1]
    for column in range(1, sums.shape[-1]):
        total = total + sums[..., column : column + 1]
    # torch's float32 square root is not correctly rounded on every CPU. Rounding
    # the float64 root is, as float64 has more than twice the digits.
    return total.double().sqrt().float()


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


def _mix(rows: torch.Tensor) -> torch.Tensor:
    """Multiply ``[..., head_dim]`` rows by the symmetric orthonormal ``W``."""
    width = rows.shape[-1]
    block = width & -width
    blocks = rows.unflatten(-1, (width // block, block))
    half = block // 2
    while half:
        pairs = blocks.unflatten(-1, (block // (2 * half), 2, half))
        left, right = pairs.unbind(dim=-2)
        blocks = torch.stack([left + right, left - right], dim=-2).flatten(-3)
        half //= 2
    blocks = blocks * block**-0.5
    if width == block:
        return blocks.flatten(-2)
    weights = torch.tensor(tables.hartley(width // block), device=rows.device)
    total = blocks[..., :1, :] * weights[:, :1]
    for column in range(1, len(weights)):
        part = blocks[..., column : column + 1, :]
        total = total + part * weights[:, column : column + 1]
    return total.flatten(-2)


def _fields(views: KVViews, slot: SlotLayout) -> list[tuple[torch.Tensor, Field, int]]:
    """Pair each view with its field and the field's offset in a slot."""
    keys, values = views
    fields: list[tuple[torch.Tensor, Field, int]] = [(keys, slot.key, 0)]
    if values is not None and slot.value is not None:
        fields.append((values, slot.value, slot.value_offset))
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
